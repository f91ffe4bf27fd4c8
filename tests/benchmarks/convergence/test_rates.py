"""The search for a learning rate goes on until its best rate is inside the grid."""

import math
from collections.abc import Callable

from convergence.claim import MOST_RATES, search


def valley(best: float) -> Callable[[float], float]:
    return lambda rate: abs(math.log(rate / best))


def test_a_best_rate_inside_the_grid_ends_the_search() -> None:
    assert search([0.1, 0.2, 0.4], valley(0.2)) == (0.2, [0.1, 0.2, 0.4])


def test_the_grid_grows_beyond_the_edge_that_is_best() -> None:
    best, grid = search([0.1, 0.2, 0.4], valley(0.025))
    assert (best, grid) == (0.025, [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4])
    best, grid = search([0.1, 0.2], valley(0.8))
    assert (best, grid) == (0.8, [0.1, 0.2, 0.4, 0.8, 1.6])


def test_unknown_losses_are_asked_for_first() -> None:
    known = {0.1: 3.0, 0.2: 2.0}
    assert search([0.1, 0.2], known.get) == (None, [0.1, 0.2, 0.4])


def test_the_grid_shrinks_away_from_rates_that_diverge() -> None:
    losses = {0.1: 1.0, 0.2: 0.5, 0.05: 2.0}
    best, grid = search([0.4, 0.8], lambda rate: losses.get(rate, math.inf))
    assert (best, grid) == (0.2, [0.1, 0.2, 0.4, 0.8])


def test_a_search_without_a_minimum_gives_up() -> None:
    asked = []

    def falling(rate: float) -> float:
        asked.append(rate)
        return -rate

    best, grid = search([0.1, 0.2], falling)
    assert best is None
    assert set(grid) == set(asked)
    assert len(grid) == MOST_RATES
    assert search([0.1, 0.2], lambda _: math.inf)[0] is None
