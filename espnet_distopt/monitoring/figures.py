"""Pictures of one or several trainings, as a file or as SVG within a page of HTML."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_distopt.errors import InputError
from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.files.writing import whole_file
from espnet_distopt.monitoring.duration import TimeUnit, duration, time_unit
from espnet_distopt.monitoring.experiment import STARTS, Experiment
from espnet_distopt.monitoring.lines import Line

KINDS = ("png", "pdf", "svg")
NAMED = 8
"""The largest number of learners that the legend names."""

NO_METADATA = ("Creator", "Date", "Format", "Type")
"""What matplotlib would write about itself into each picture."""


def compare(experiments: Sequence[Experiment], path: Path, title: str) -> None:
    """Write a picture of the losses of all experiments over their time of training.

    Args:
        experiments: The experiments, read with all their lines.
        path: The file; a name without an ending becomes a PNG.
        title: The heading.

    Raises:
        InputError: Its ending is that of another format.
    """
    kind = path.suffix.removeprefix(".").lower() or "png"
    if kind not in KINDS:
        allowed = ", ".join(f".{known}" for known in KINDS)
        raise InputError(f"{path}: a plot's file ends in one of {allowed}")
    named = zip(labels(experiments), experiments, strict=True)
    figure = _draw_losses({f"{n}: {duration(each.seconds)}": each for n, each in named})
    figure.suptitle(title)
    with whole_file(path) as new:
        figure.savefig(new, format=kind, dpi=150)


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return the algorithm of each experiment, and its directory if others have it."""
    algorithms = [each.algorithm for each in experiments]
    names = distinguishing_names([each.directory for each in experiments])
    return [
        f"{algorithm}, {name}" if algorithms.count(algorithm) > 1 else algorithm
        for algorithm, name in zip(algorithms, names, strict=True)
    ]


def losses(experiments: Mapping[str, Experiment]) -> str:
    """Draw training and validation losses over time, and validation over samples.

    The experiments have names here, and were read with all their lines.
    """
    return _svg(_draw_losses(experiments), "losses")


def _draw_losses(experiments: Mapping[str, Experiment]) -> Figure:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    unit = time_unit(max(each.seconds for each in experiments.values()))
    for number, (name, experiment) in enumerate(experiments.items()):
        colour = f"C{number % 10}"
        for learner in experiment.learners.values():
            drawn = _curve(
                learner.lines, lambda line: line.loss, experiment.elapsed, unit
            )
            left.plot(*drawn, color=colour, linewidth=0.8, alpha=0.7)
        points = list(validations(experiment, unit))
        for axis, x in ((middle, 0), (right, 1)):
            place, loss = [p[x] for p in points], [p[2] for p in points]
            axis.plot(place, loss, marker="o", color=colour, label=name)
    left.set(title="training loss of each learner", xlabel=unit.name)
    middle.set(title="validation loss", xlabel=unit.name)
    right.set(title="validation loss", xlabel="utterances, of all learners")
    if any(axis.lines for axis in (middle, right)):
        middle.legend(fontsize="small")
    return _gridded(figure)


def learners(experiment: Experiment) -> str:
    """Draw speed and staleness over time, and how each learner's time was spent.

    A dotted line is a learner's death, a dashed one its return.
    """
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    speed, staleness, spent = figure.subplots(1, 3)
    unit = time_unit(experiment.seconds)
    rows: list[tuple[Axes, str, Callable[[Line], float | None]]] = [
        (speed, "utterances a second", _speed),
        (staleness, "staleness in steps", lambda line: line.staleness),
    ]
    for axis, title, of in rows:
        empty = True
        for rank, learner in experiment.learners.items():
            times, values = _curve(learner.lines, of, experiment.elapsed, unit)
            empty = empty and all(map(math.isnan, values))
            colour = f"C{rank % 10}"
            axis.plot(times, values, color=colour, linewidth=0.9, label=f"{rank}")
        if empty:
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
            axis.set_yticks([])
        for change in experiment.changes:
            axis.axvline(
                experiment.elapsed(change.time) / unit.seconds,
                color=f"C{change.rank % 10}",
                linestyle="--" if change.joins else ":",
            )
        axis.set(title=title, xlabel=unit.name)
    if len(experiment.learners) <= NAMED:
        speed.legend(title="learner", fontsize="small")
    ranks = list(experiment.learners)
    below = [0.0] * len(ranks)
    for name, parts in shares(experiment).items():
        spent.bar(ranks, parts, bottom=below, label=name)
        below = [a + b for a, b in zip(below, parts, strict=True)]
    spent.set(title="share of training time", xlabel="learner", xticks=ranks)
    figure.legend(
        *spent.get_legend_handles_labels(), fontsize="small", loc="outside right center"
    )
    return _svg(_gridded(figure), str(experiment.directory))


def _speed(line: Line) -> float | None:
    return line.samples / line.seconds if line.seconds else None


def _curve(
    lines: Sequence[Line],
    of: Callable[[Line], float | None],
    elapsed: Callable[[float], float],
    unit: TimeUnit,
) -> tuple[list[float], list[float]]:
    """Return times of training, and a figure of the lines that have it.

    A NaN makes a gap before each start.
    """
    times, values = [], []
    for line in lines:
        value = math.nan if line.event in STARTS else of(line)
        if value is not None:
            times.append(elapsed(line.time) / unit.seconds)
            values.append(value)
    return times, values


def validations(
    experiment: Experiment, unit: TimeUnit
) -> Iterator[tuple[float, float, float]]:
    """Yield the time, utterances of all learners until then, and validation loss."""
    everyone = [*experiment.learners.values(), *experiment.earlier.values()]
    everything = [line for each in everyone for line in each.lines]
    for line in experiment.epoch_ends:
        samples = sum(each.samples for each in everything if each.time <= line.time)
        assert line.valid_loss is not None
        x = samples or math.nan  # A stock training's log does not tell them.
        yield experiment.elapsed(line.time) / unit.seconds, x, line.valid_loss


def shares(experiment: Experiment) -> dict[str, list[float]]:
    """Return the shares of the training time: computing, communicating, waiting.

    Each has a number from 0 to 1 for each learner, and zeros if nothing is measured.
    """
    found: dict[str, list[float]] = {"computes": [], "communicates": [], "waits": []}
    for learner in experiment.learners.values():
        known = (line for line in learner.lines if line.seconds)
        lines = [line for line in known if line.computing is not None]
        seconds = sum(line.seconds for line in lines) or math.inf
        found["computes"].append(sum(line.computing or 0.0 for line in lines) / seconds)
        found["communicates"].append(sum(x.comm_time or 0.0 for x in lines) / seconds)
        found["waits"].append(sum(line.wait_time or 0.0 for line in lines) / seconds)
    return found


def _gridded(figure: Figure) -> Figure:
    for axis in figure.axes:
        axis.grid(alpha=0.3)
    return figure


def _svg(figure: Figure, salt: str) -> str:
    # Text stays text, and the ids of one page's pictures differ by their salts.
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}),
        io.StringIO() as file,
    ):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(NO_METADATA))
        text = file.getvalue()
    return text[text.index("<svg") :]
