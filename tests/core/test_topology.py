"""Who talks to whom."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.core.topology import (
    deal_colours,
    living_other_colour,
    living_ring,
)

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
