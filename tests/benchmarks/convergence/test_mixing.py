"""How far averaging lets learners drift apart, by theory."""

import numpy as np
import pytest
from convergence.mixing import (
    alternating_pairs,
    least_of_pairs,
    of_factor,
    of_random_edges,
    of_rounds,
    pair_matrix,
)

from espnet_distopt.core.mixing import mixing_matrix


@pytest.mark.parametrize(
    ("size", "expected"), [(4, 0.8438), (8, 1.3862), (16, 2.4096), (64, 8.4272)]
)
def test_a_fixed_ring_has_its_closed_form(size: int, expected: float) -> None:
    shares = of_rounds([mixing_matrix("ring", size)], 4000)
    assert shares.sum() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_nothing_that_exchanges_once_a_step_is_closer_than_a_hypercube(
    size: int,
) -> None:
    rounds = [mixing_matrix("hypercube", size, k) for k in range(size.bit_length() - 1)]
    least = least_of_pairs(size, 20)
    np.testing.assert_allclose(of_rounds(rounds, 20), least, atol=1e-15)
    for other in (of_rounds(alternating_pairs(size), 20), of_random_edges(size, 20)):
        assert (other >= least - 1e-12).all()


def test_random_edges_are_what_random_edges_do() -> None:
    size, steps, runs = 8, 4, 4000
    source = np.random.default_rng(0)
    found = np.zeros(steps)
    for _ in range(runs):
        mixed = np.eye(size) - 1 / size
        for age in range(steps):
            found[age] += np.square(mixed).sum() / size / runs
            for edge in source.integers(size, size=size // 2):
                mixed = pair_matrix(size, [(edge, (edge + 1) % size)]) @ mixed
    np.testing.assert_allclose(of_random_edges(size, steps), found, rtol=0.02)


def test_a_factor_is_a_geometric_series() -> None:
    assert of_factor(4, 0.25, 60).sum() == pytest.approx(1.0)
