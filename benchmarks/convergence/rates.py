"""The module chooses a learning rate from a grid whose best rate is not at its edge."""

import math
from collections.abc import Callable, Sequence

MOST_RATES = 12
"""The rates after which a search gives up: the loss has no minimum in sight."""


def search(
    rates: Sequence[float], loss: Callable[[float], float | None]
) -> tuple[float | None, list[float]]:
    """Return the best rate if it is known, and all rates that are needed to know it.

    The grid grows by the ratio of its first two rates, beyond the edge at which the
    best rate is, until the best rate has a worse neighbour on both sides. If the grid
    has `MOST_RATES` before that, the search gives up: there is no best rate, although
    all losses are known.

    Args:
        rates: the first rates, growing by a constant factor; at least two.
        loss: a function that returns the loss of a rate, infinity if the training
            diverged, or None if the loss is not known yet.
    """
    grid = sorted(rates)
    factor = grid[1] / grid[0]
    while True:
        losses = [loss(rate) for rate in grid]
        known = [math.inf if value is None else value for value in losses]
        if None in losses:
            return None, grid
        best = known.index(min(known))
        if 0 < best < len(grid) - 1:
            return grid[best], grid
        if len(grid) >= MOST_RATES:
            return None, grid
        if best == 0:
            grid.insert(0, rounded(grid[0] / factor))
        else:
            grid.append(rounded(grid[-1] * factor))


def rounded(rate: float) -> float:
    """Return a rate with three digits, so that it is the same cell every time."""
    return float(f"{rate:.3g}")
