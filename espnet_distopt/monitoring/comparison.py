"""A plot that compares trainings: their losses over the time that they took."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.monitoring.duration import TimeUnit, duration, time_unit
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.pictures import write_picture

INTERVALS = 40
"""The number of parts of a training's time over which training losses are means."""


def compare(experiments: Sequence[Experiment], path: Path, title: str) -> None:
    """Write a picture of the losses of all experiments over their time of training.

    Args:
        experiments: The experiments, read with all their lines.
        path: The file, see `write_picture`.
        title: The heading of the plot.

    Raises:
        InputError: Its ending is that of another format.
        OSError: The file cannot be written.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    unit = time_unit(max(each.seconds for each in experiments))
    for number, (name, experiment) in enumerate(
        zip(labels(experiments), experiments, strict=True)
    ):
        colour = f"C{number}"
        times, losses = training_losses(experiment, unit)
        axes.plot(times, losses, color=colour, alpha=0.4)
        times, losses = validation_losses(experiment, unit)
        label = f"{name}: {duration(times[-1] * unit.seconds)}" if times else name
        axes.plot(times, losses, color=colour, marker="o", label=label)
    axes.set(
        xlabel=f"{unit.name} of training since the first batch",
        ylabel="loss (thin: training; dots: validation)",
        yscale="log",
        title=title,
    )
    # A reader reads 2, 5 and 10 more easily than powers of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    write_picture(figure, path, dpi=150)


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return the algorithm of each experiment, and its directory if others have it."""
    algorithms = [each.last.algorithm for each in experiments]
    names = distinguishing_names([each.directory for each in experiments])
    return [
        f"{algorithm}, {name}" if algorithms.count(algorithm) > 1 else algorithm
        for algorithm, name in zip(algorithms, names, strict=True)
    ]


def training_losses(
    experiment: Experiment, unit: TimeUnit
) -> tuple[list[float], list[float]]:
    """Return times, and the mean training loss of all learners around each."""
    first = _first(experiment)
    points = [
        (experiment.elapsed(line.time) - first, line.loss, line.samples)
        for learner in experiment.learners.values()
        for line in learner.lines
        if line.loss is not None and math.isfinite(line.loss) and line.samples
    ]
    width = max((time for time, _, _ in points), default=0.0) / INTERVALS or 1.0
    sums: dict[int, tuple[float, int]] = {}
    for time, loss, samples in points:
        interval = min(int(time / width), INTERVALS - 1)
        total, count = sums.get(interval, (0.0, 0))
        sums[interval] = total + loss * samples, count + samples
    times = [(interval + 0.5) * width / unit.seconds for interval in sorted(sums)]
    return times, [sums[key][0] / sums[key][1] for key in sorted(sums)]


def validation_losses(
    experiment: Experiment, unit: TimeUnit
) -> tuple[list[float], list[float]]:
    """Return the times at which epochs ended, and the validation losses."""
    first = _first(experiment)
    points = [
        ((experiment.elapsed(line.time) - first) / unit.seconds, line.valid_loss)
        for line in experiment.epoch_ends
        if line.valid_loss is not None
    ]
    return [time for time, _ in points], [loss for _, loss in points]


def _first(experiment: Experiment) -> float:
    """Return the seconds until the first learner began its first batch."""
    starts = [
        experiment.elapsed(line.time) - line.seconds
        for learner in experiment.learners.values()
        for line in learner.lines
        if line.batches
    ]
    return min(starts, default=0.0)
