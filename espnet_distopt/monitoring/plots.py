"""A plot of the figures of `bin.status`, over the time of the training."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_distopt.files.writing import whole_file
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.learner import STARTS, LearnerHistory
from espnet_distopt.monitoring.lines import Line

NAMED = 8
"""The largest number of learners that the legend names."""


def plot(experiments: Sequence[Experiment], path: Path) -> None:
    """Write a PNG with a column for each experiment.

    Args:
        experiments: The experiments, read with all their lines.
        path: The PNG file. It is written under a temporary name and then renamed.

    Raises:
        OSError: The file cannot be written.
    """
    size = (1 + 6 * len(experiments), 11)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(4, len(experiments), squeeze=False, sharex="col")
    for column, experiment in zip(grid.T, experiments, strict=True):
        _column(list(column), experiment)
    with whole_file(path) as new:
        figure.savefig(new, format="png")


def _column(axes: Sequence[Axes], experiment: Experiment) -> None:
    first = min(each.lines[0].time for each in experiment.learners.values())
    last = experiment.last
    axes[0].set_title(f"{experiment.directory.name} ({last.algorithm})")
    rows: list[tuple[str, Callable[[Line], float | None]]] = [
        ("loss", lambda line: line.loss),
        ("samples/s", _rate),
        ("staleness (steps)", lambda line: line.staleness),
    ]
    for axis, (label, of) in zip(axes, rows, strict=False):
        axis.set_ylabel(label)
        for rank, learner in experiment.learners.items():
            hours, values = _curve(learner, of, first)
            axis.plot(
                hours, values, marker=".", color=f"C{rank}", label=f"learner {rank}"
            )
    one = next(iter(experiment.learners.values()))
    hours, values = _curve(one, lambda line: line.valid_loss, first)
    axes[0].plot(hours, values, marker="o", color="black", label="validation")
    hours, values = _curve(one, lambda line: line.consensus_distance, first)
    axes[3].plot(hours, values, marker="o")
    axes[3].set(ylabel="consensus distance", xlabel="hours")
    if len(experiment.learners) <= NAMED:
        axes[0].legend()
    for axis in axes:
        axis.grid(alpha=0.3)


def _curve(
    learner: LearnerHistory, of: Callable[[Line], float | None], first: float
) -> tuple[list[float], list[float]]:
    """Return hours since `first`, and a figure; a NaN makes a gap before each start."""
    hours, values = [], []
    for line in learner.lines:
        value = math.nan if line.event in STARTS else of(line)
        if value is not None:
            hours.append((line.time - first) / 3600)
            values.append(value)
    return hours, values


def _rate(line: Line) -> float | None:
    return line.samples / line.seconds if line.seconds else None
