"""Who talks to whom."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.core.topology import (
    Topology,
    deal_colours,
    deal_hypercube_colours,
    hypercube_peers,
    living_other_colour,
    living_ring,
    mixing_matrix,
    randomized_ring,
    ring_weights,
    spectral_gap,
)

TOPOLOGIES: list[Topology] = ["ring", "randomized_ring", "complete"]


# Two colours, for AD-PSGD

Neighbours = Callable[[int, Collection[int], Sequence[int]], tuple[int, ...]]
COLOURED: list[Neighbours] = [living_ring, living_other_colour]
Edges = set[tuple[int, int]]


def edges(neighbours: Neighbours, size: int) -> Edges:
    """Every edge twice: (a, b) and (b, a)."""
    return healed(neighbours, deal_colours(range(size)), range(size))


def healed(
    neighbours: Neighbours, actives: Collection[int], living: Sequence[int]
) -> Edges:
    return {(a, b) for a in living for b in neighbours(a, actives, living)}


@st.composite
def survivors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    """Return the actives of a team, and those who live; some may have joined since."""
    size = draw(st.integers(1, 40))
    ranks = st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted)
    return deal_colours(draw(ranks)), draw(ranks)


def reached(found: Edges, first: int) -> set[int]:
    seen, left = {first}, [first]
    while left:
        own = left.pop()
        near = {b for a, b in found if a == own} - seen
        seen |= near
        left += near
    return seen


@pytest.mark.parametrize("neighbours", COLOURED)
@given(team=survivors())
def test_edges_join_living_actives_with_living_passives(
    neighbours: Neighbours, team: tuple[tuple[int, ...], list[int]]
) -> None:
    actives, living = team
    found = healed(neighbours, actives, living)
    assert all((b, a) in found for a, b in found)
    assert all((a in actives) != (b in actives) for a, b in found)
    assert {a for a, _ in found} <= set(living)
    colours = {rank in actives for rank in living}
    everybody = set(living) if len(colours) == 2 else {living[0]}
    assert reached(found, living[0]) == everybody


@given(st.integers(3, 40))
def test_a_ring_without_gaps_is_a_ring_or_a_path(size: int) -> None:
    found = edges(living_ring, size)
    assert all(abs(a - b) in (1, size - 1) for a, b in found)
    assert len(found) == 2 * (size if size % 2 == 0 else size - 1)


def test_a_ring_closes_over_its_gaps() -> None:
    """Learners 2 and 6 of a ring of 8 die, then 1 and 7 too; 0 and 4 are active."""
    actives = deal_colours(range(8))
    assert healed(living_ring, actives, [0, 1, 3, 4, 5, 7]) == {
        edge
        for a, b in [(0, 1), (0, 7), (0, 3), (0, 5), (4, 3), (4, 5), (4, 1), (4, 7)]
        for edge in [(a, b), (b, a)]
    }
    assert living_ring(0, actives, [0, 3, 4, 5]) == (3, 5)
    assert living_ring(5, actives, [0, 3, 4, 5]) == (0, 4)


@given(st.integers(1, 40))
def test_other_colour_has_every_edge_there_is(size: int) -> None:
    found = edges(living_other_colour, size)
    assert len(found) == 2 * (size // 2) * (size - size // 2)


def contraction(neighbours: Neighbours, size: int) -> float:
    """Mean-square factor of an event: the average of a uniformly chosen edge's ends.

    E[W] = E[W^T W], as pair averages are projections.
    """
    mean, found = np.zeros((size, size)), edges(neighbours, size)
    for pair in found:
        mixing = np.eye(size)
        mixing[np.ix_(pair, pair)] = 0.5
        mean += mixing / len(found)
    return float(np.linalg.eigvalsh(mean)[-2])


@pytest.mark.parametrize("size", [4, 8, 16, 64])
def test_contraction_of_single_pairs(size: int) -> None:
    """Closed forms of random pairs (complete bipartite halves), and of ring edges."""
    ring = 1 - (1 - math.cos(2 * math.pi / size)) / size
    assert contraction(living_ring, size) == pytest.approx(ring, abs=1e-12)
    assert contraction(living_other_colour, size) == pytest.approx(
        1 - 1 / size, abs=1e-12
    )


# Mixing matrices (docs/algorithms/synchronous.md, SD3, SD5 and D5)


@given(
    st.sampled_from(TOPOLOGIES),
    st.integers(1, 24),
    st.integers(0, 1000),
    st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_sd5_mixing_conserves_the_mean_for_every_k(
    topology: Topology, size: int, k: int, seed: int
) -> None:
    matrix = mixing_matrix(topology, size, k, seed)
    assert np.array_equal(matrix, matrix.T)
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1, rtol=1e-15)
    if topology != "complete" and size > 3:
        assert np.count_nonzero(matrix) == 3 * size
        assert set(matrix.flat) == {0, 1 / 3}


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


# Hypercube


@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_a_hypercube_has_the_exact_mean_after_log2_rounds(size: int) -> None:
    rounds = size.bit_length() - 1
    product = np.eye(size)
    for k in range(3, 3 + rounds):  # It may begin at any round.
        assert not np.array_equal(product, np.full((size, size), 1 / size))
        product = mixing_matrix("hypercube", size, k) @ product
    # Powers of two are not rounded.
    assert np.array_equal(product, np.full((size, size), 1 / size))


@pytest.mark.parametrize("size", [2, 3, 6, 8, 13])
def test_edges_of_a_hypercube_join_two_colours(size: int) -> None:
    actives = deal_hypercube_colours(size)
    for place in range(size):
        for peer in hypercube_peers(place, size):
            assert place in hypercube_peers(peer, size)
            assert (place in actives) != (peer in actives)
    near = {(a, b) for a in range(size) for b in hypercube_peers(a, size)}
    assert reached(near, 0) == set(range(size))
