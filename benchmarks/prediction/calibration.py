"""The module finds the few constants of a cluster that step times depend on.

For each cluster these are a compute time that is a line in the samples of a learner
(`fixed` and `sample` seconds) and the time of one model through each class of links
(the bus inside a node, and the card between nodes). One overlap factor of DDP holds for
all clusters. There is no constant for a single method or a single row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from espnet_distopt.simulation.cluster_file import StepTime
from prediction.methods import step_seconds
from prediction.published import (
    A40,
    A100,
    BATCH,
    METHODS,
    T4,
    Method,
    PublishedCluster,
)

Cell = tuple[PublishedCluster, int, Method]
"""A cluster, a number of learners and a method: one published step time."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What is found for a cluster.

    Attributes:
        step: the time of a step that does not communicate.
        card: the seconds in which a message of the model's size passes a node's card.
        bus: the seconds in which it passes the bus inside a node.
        overlap: the share of DDP's communication that hides behind the backward pass.
    """

    step: StepTime
    card: float
    bus: float
    overlap: float

    def milliseconds(self, cell: Cell) -> float:
        """Return the step time that the constants predict."""
        cluster, learners, method = cell
        compute = self.step.of(BATCH / learners)
        arguments = cluster.per_node, learners, compute, self.card, self.bus
        return 1e3 * step_seconds(method, *arguments, self.overlap)


@dataclass(frozen=True)
class Calibration:
    """What was found for all clusters, and from which rows.

    Attributes:
        constants: cluster name -> its constants.
        rows: the rows they were found from.
    """

    constants: dict[str, Constants]
    rows: list[Cell]

    def misfit(self) -> float:
        """Return the sum of the squared logarithms of predicted / published."""
        return sum(misfit(self.constants[cell[0].name], [cell]) for cell in self.rows)


End = Literal["smallest", "largest"]
"""The size of a cluster whose rows are calibrated on."""

OVERLAPS = [tenths / 10 for tenths in range(1, 10)]


def calibrate(end: End = "smallest") -> Calibration:
    """Return the calibration whose overlap factor, in tenths, fits its rows best.

    - T4 and A100: all four methods at the smallest size give card and bus, and with the
      alternating ring at the second size they give the line of the compute time. If the
      largest size is taken in its place, the line is that through the alternating ring
      at both ends.
    - A40: its three rows of DDP give its card, and a factor on the compute time of an
      A100. Its GPUs have no NVLink, as the T4, whose bus is taken.
    """
    found = [with_overlap(overlap, end) for overlap in OVERLAPS]
    return min(found, key=Calibration.misfit)


def with_overlap(overlap: float, end: End = "smallest") -> Calibration:
    """Return the calibration with a given overlap factor."""
    constants, rows = dict[str, Constants](), list[Cell]()
    for cluster in (T4, A100):
        cells = _cells(cluster, end)
        constants[cluster.name] = _fit(cluster, cells, overlap)
        rows += cells
    cells = [(A40, learners, "ddp") for learners in A40.steps]
    of_a100, bus = constants[A100.name].step, constants[T4.name].bus

    def of(point: list[float]) -> Constants:
        factor, card = map(math.exp, point)
        fixed, sample = of_a100.fixed * factor, of_a100.sample * factor
        step = StepTime(fixed=fixed, sample=sample)
        return Constants(step=step, card=card, bus=bus, overlap=overlap)

    point = search(lambda point: misfit(of(point), cells), [0.5, math.log(0.08)])
    constants[A40.name] = of(point)
    return Calibration(constants, rows + cells)


def _cells(cluster: PublishedCluster, end: End) -> list[Cell]:
    smallest, second, largest = sorted(cluster.steps)
    whole, other = (smallest, second) if end == "smallest" else (largest, smallest)
    return [
        *((cluster, whole, method) for method in METHODS),
        (cluster, other, "aer"),
    ]


def _fit(cluster: PublishedCluster, cells: list[Cell], overlap: float) -> Constants:
    """Return the constants of a cluster that fit best; the search begins at several."""

    def of(point: list[float]) -> Constants:
        fixed, sample, card, bus = map(math.exp, point)
        step = StepTime(fixed=fixed, sample=sample)
        return Constants(step=step, card=card, bus=bus, overlap=overlap)

    smallest = min(cluster.steps)
    step = cluster.steps[smallest]["aer"] * 1e-3
    tries = [
        [step * share, step * (1 - share) * smallest / BATCH, card, bus]
        for share in (0.2, 0.6)
        for card in (0.002, 0.02)
        for bus in (0.002, 0.02)
    ]
    points = [
        search(lambda point: misfit(of(point), cells), [math.log(x) for x in each])
        for each in tries
    ]
    return min(map(of, points), key=lambda constants: misfit(constants, cells))


def misfit(constants: Constants, cells: list[Cell]) -> float:
    """Return the sum of the squared logarithms of predicted / published."""
    ratios = (
        constants.milliseconds(cell) / cell[0].steps[cell[1]][cell[2]] for cell in cells
    )
    return sum(math.log(ratio) ** 2 for ratio in ratios)


def search(loss: Callable[[list[float]], float], start: list[float]) -> list[float]:
    """Return logarithms of constants at which `loss` is least nearby.

    One coordinate after another is moved by a step, which is halved when nothing
    becomes better. A constant on which the loss does not depend stays where it starts.
    """
    point, best, step = start, loss(start), 0.5
    while step > 1e-4:
        moved = False
        for place in range(len(point)):
            for sign in (1, -1):
                trial = [*point]
                trial[place] += sign * step
                value = loss(trial)
                if value < best - 1e-12:
                    point, best, moved = trial, value, True
        if not moved:
            step /= 2
    return point
