"""A plot of the figures of `bin.status`, over the time of the training."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.monitoring.duration import TimeUnit, time_unit
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.learner import STARTS
from espnet_distopt.monitoring.lines import Line
from espnet_distopt.monitoring.pictures import write_picture

NAMED = 8
"""The largest number of learners that the legend names."""


def plot(experiments: Sequence[Experiment], path: Path) -> None:
    """Write a picture with a column for each experiment.

    Args:
        experiments: The experiments, read with all their lines.
        path: The file, see `write_picture`.

    Raises:
        InputError: Its ending is that of another format.
        OSError: The file cannot be written.
    """
    size = (1 + 6 * len(experiments), 11)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(4, len(experiments), squeeze=False, sharex="col")
    names = distinguishing_names([each.directory for each in experiments])
    for column, name, experiment in zip(grid.T, names, experiments, strict=True):
        column[0].set_title(f"{name} ({experiment.last.algorithm})")
        _column(list(column), experiment)
    write_picture(figure, path)


def _column(axes: Sequence[Axes], experiment: Experiment) -> None:
    unit = time_unit(experiment.seconds)
    rows: list[tuple[str, Callable[[Line], float | None]]] = [
        ("loss", lambda line: line.loss),
        ("samples/s", rate),
        ("staleness (steps)", lambda line: line.staleness),
    ]
    for axis, (label, of) in zip(axes, rows, strict=False):
        axis.set_ylabel(label)
        for rank, learner in experiment.learners.items():
            drawn = curve(learner.lines, of, experiment.elapsed, unit)
            axis.plot(*drawn, marker=".", color=f"C{rank}", label=f"learner {rank}")
    ends, elapsed = experiment.epoch_ends, experiment.elapsed
    drawn = curve(ends, lambda line: line.valid_loss, elapsed, unit)
    axes[0].plot(*drawn, marker="o", color="black", label="validation")
    drawn = curve(ends, lambda line: line.consensus_distance, elapsed, unit)
    axes[3].plot(*drawn, marker="o")
    axes[3].set(ylabel="consensus distance", xlabel=unit.name)
    if len(experiment.learners) <= NAMED:
        axes[0].legend()
    for axis in axes:
        axis.grid(alpha=0.3)


def curve(
    lines: Iterable[Line],
    of: Callable[[Line], float | None],
    elapsed: Callable[[float], float],
    unit: TimeUnit,
) -> tuple[list[float], list[float]]:
    """Return a figure over the time of training; a NaN makes a gap before each start.

    Args:
        lines: The lines, of one learner or of the ends of epochs.
        of: Takes the figure from a line; None leaves the line out.
        elapsed: Takes the seconds of training from a Unix time.
        unit: The unit of time.

    Returns:
        The time of training, and the figure.
    """
    times, values = [], []
    for line in lines:
        value = math.nan if line.event in STARTS else of(line)
        if value is not None:
            times.append(elapsed(line.time) / unit.seconds)
            values.append(value)
    return times, values


def rate(line: Line) -> float | None:
    """Return the utterances per second since the line before; None without training."""
    return line.samples / line.seconds if line.seconds else None
