"""With which weights learners average (docs/algorithms/synchronous.md)."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.core.mixing import (
    Topology,
    alternating_group,
    mixing_matrix,
    randomized_ring,
    ring_weights,
    rounds_of,
    spectral_gap,
)

RINGS: list[Topology] = ["ring", "randomized_ring"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, int, int]:
    """Return a topology, a number of learners for it, and how many a node has."""
    topology = draw(st.sampled_from(get_args(Topology)))
    if topology == "alternating":
        per_node = draw(st.integers(1, 4))
        return topology, per_node * 2 ** draw(st.integers(1, 3)), per_node
    return topology, draw(st.integers(1, 24)), 1


@given(cases(), st.integers(0, 1000), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_sd5_mixing_conserves_the_mean_for_every_k(
    case: tuple[Topology, int, int], k: int, seed: int
) -> None:
    topology, size, per_node = case
    matrix = mixing_matrix(topology, size, k, seed, per_node)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-15)
    assert (matrix >= -1e-15).all()
    np.testing.assert_allclose(matrix.sum(0), 1, rtol=1e-15)
    if topology in RINGS and size > 3:
        assert np.count_nonzero(matrix) == 3 * size
        assert set(matrix.flat) == {0, 1 / 3}


@given(cases(), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_rounds_of_a_topology_reach_everybody(
    case: tuple[Topology, int, int], first: int
) -> None:
    """From any round on: so learners with unequal numbers of steps notice it."""
    topology, size, per_node = case
    rounds = rounds_of(topology, size, per_node)
    together = sum(
        mixing_matrix(topology, size, first + k, 0, per_node) for k in range(rounds)
    )
    edges = np.abs(together) > 1e-12
    assert np.linalg.matrix_power(edges.astype(float), size).all()


RING_GAPS = {
    8: (0.804738, 0.195262),
    16: (0.949253, 0.050747),
    32: (0.987190, 0.012810),
    64: (0.996790, 0.003210),
    128: (0.999197, 0.000803),
}


@pytest.mark.parametrize("size", RING_GAPS)
def test_spectrum_of_the_ring(size: int) -> None:
    """Eigenvalues are (1 + 2 cos(2 pi j / N)) / 3; the smallest is -1/3."""
    matrix = mixing_matrix("ring", size)
    gap = spectral_gap(matrix)
    assert (round(1 - gap, 6), round(gap, 6)) == RING_GAPS[size]
    expected = np.sort((1 + 2 * np.cos(2 * np.pi * np.arange(size) / size)) / 3)
    np.testing.assert_allclose(np.linalg.eigvalsh(matrix), expected, atol=1e-12)
    shuffled = mixing_matrix("randomized_ring", size, k=7, seed=1)
    assert spectral_gap(shuffled) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize(
    ("size", "modulus"), [(2, 1 / 3), (3, 0), (4, 1 / 3), (5, 0.539345)]
)
def test_spectrum_of_small_rings(size: int, modulus: float) -> None:
    gap = spectral_gap(mixing_matrix("ring", size))
    assert 1 - gap == pytest.approx(modulus, abs=5e-7)


def test_small_rings() -> None:
    assert ring_weights(0, [0]) == {0: 1}
    assert ring_weights(1, [0, 1]) == {0: 2 / 3, 1: 1 / 3}
    assert ring_weights(1, [2, 0, 1]) == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}


@pytest.mark.parametrize("size", [2, 7, 64])
def test_the_complete_graph_averages_exactly(size: int) -> None:
    assert spectral_gap(mixing_matrix("complete", size)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("order", "x", "expected"),
    [
        ([2, 0, 3, 1], [0, 3, 6, 9], [5, 6, 3, 4]),
        ([3, 0, 4, 1, 2], [0, 1, 2, 3, 10], [13 / 3, 13 / 3, 2, 5 / 3, 11 / 3]),
    ],
)
def test_sd3_ring_in_another_order(
    order: list[int], x: list[float], expected: list[float]
) -> None:
    mixed = [
        sum(weight * x[peer] for peer, weight in ring_weights(rank, order).items())
        for rank in range(len(x))
    ]
    assert mixed == pytest.approx(expected, abs=1e-12)


def test_randomized_ring_contracts_as_uniform_permutations_do() -> None:
    """In mean square by 1/3 - (2/3)/(N-1) a step: 0.4880 at N = 8, as a root."""
    x = np.array([7.0, -3, -2, -1, 0, 1, 2, -4])
    squares = [
        np.square(mixing_matrix("randomized_ring", 8, k, seed=3) @ x).sum()
        for k in range(3000)
    ]
    factor = np.mean(squares) / np.square(x).sum()
    assert factor == pytest.approx(1 / 3 - (2 / 3) / 7, rel=0.03)
    assert np.sqrt(factor) == pytest.approx(0.4880, rel=0.015)


def test_orders_depend_on_seed_and_k() -> None:
    orders = [randomized_ring(seed, k, 50) for seed in (0, 1) for k in (0, 1, 2)]
    assert len({*map(tuple, orders)}) == 6
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert randomized_ring(1, 2, 50) == orders[-1]


@pytest.mark.parametrize(
    ("topology", "size", "expected"),
    [
        ("ring", 4, 0.8438),
        ("ring", 8, 1.3862),
        ("ring", 16, 2.4096),
        ("ring", 64, 8.4272),
        ("complete", 16, 15 / 16),
    ],
)
def test_stationary_disagreement(
    topology: Topology, size: int, expected: float
) -> None:
    """E ||X - xbar||^2 / N of C <- W C W + I, in units of (lr s)^2."""
    power = mixing_matrix(topology, size)
    differences = np.eye(size) - 1 / size
    for _ in range(16):  # C_2k = C_k + W^k C_k W^k
        differences += power @ differences @ power
        power = power @ power
    assert np.trace(differences) / size == pytest.approx(expected, abs=5e-5)


# Exact means


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 3), (2, 1), (4, 2), (8, 8)])
def test_an_alternating_ring_has_the_exact_mean_after_its_rounds(
    nodes: int, per_node: int
) -> None:
    """The means over two nodes alone are enough; those of one are cheap."""
    size, product = nodes * per_node, np.eye(nodes * per_node)
    for k in range(rounds_of("alternating", size, per_node)):
        product = mixing_matrix("alternating", size, k, per_node=per_node) @ product
    assert np.allclose(product, 1 / size, rtol=0, atol=1e-15)


def test_an_alternating_ring_leaves_its_nodes_every_other_time_only() -> None:
    for k in range(12):
        for rank in range(16):
            group = alternating_group(rank, 16, 4, k)
            nodes = {peer // 4 for peer in group}
            assert len(group) == 4 * len(nodes) == (4 if k % 2 == 0 else 8)
            assert all(alternating_group(peer, 16, 4, k) == group for peer in group)
