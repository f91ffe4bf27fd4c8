"""Pictures of one or several trainings, as SVG that stands within a page of HTML."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_distopt.monitoring.duration import TimeUnit, time_unit
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.lines import Line
from espnet_distopt.monitoring.plots import NAMED, curve, rate

NO_METADATA = ("Creator", "Date", "Format", "Type")
"""What matplotlib would write about itself into each picture."""


def losses(experiments: Mapping[str, Experiment]) -> str:
    """Draw training and validation losses over time, and validation over samples.

    Args:
        experiments: The experiments, read with all their lines, by name.
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    unit = time_unit(max(each.seconds for each in experiments.values()))
    for number, (name, experiment) in enumerate(experiments.items()):
        colour = f"C{number % 10}"
        for learner in experiment.learners.values():
            drawn = curve(
                learner.lines, lambda line: line.loss, experiment.elapsed, unit
            )
            left.plot(*drawn, color=colour, linewidth=0.8, alpha=0.7)
        points = list(validations(experiment, unit))
        for axis, x in ((middle, 0), (right, 1)):
            axis.plot(
                [point[x] for point in points],
                [point[2] for point in points],
                marker="o",
                color=colour,
                label=name,
            )
    left.set(title="training loss of each learner", xlabel=unit.name)
    middle.set(title="validation loss", xlabel=unit.name)
    right.set(title="validation loss", xlabel="utterances, of all learners")
    if any(axis.lines for axis in (middle, right)):
        middle.legend(fontsize="small")
    return _svg(figure, [left, middle, right], "losses")


def learners(experiment: Experiment) -> str:
    """Draw speed and staleness over time, and how each learner's time was spent.

    A dotted line is a learner's death, a dashed one its return.
    """
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    speed, staleness, spent = figure.subplots(1, 3)
    unit = time_unit(experiment.seconds)
    rows: list[tuple[Axes, str, Callable[[Line], float | None]]] = [
        (speed, "utterances a second", rate),
        (staleness, "staleness in steps", lambda line: line.staleness),
    ]
    for axis, title, of in rows:
        empty = True
        for rank, learner in experiment.learners.items():
            times, values = curve(learner.lines, of, experiment.elapsed, unit)
            empty = empty and all(map(math.isnan, values))
            axis.plot(
                times, values, color=f"C{rank % 10}", linewidth=0.9, label=f"{rank}"
            )
        if empty:
            axis.text(0.5, 0.5, "none", ha="center", transform=axis.transAxes)
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
    return _svg(figure, [speed, staleness, spent], str(experiment.directory))


def validations(
    experiment: Experiment, unit: TimeUnit
) -> Iterator[tuple[float, int, float]]:
    """Yield the time, utterances of all learners until then, and validation loss."""
    everyone = [*experiment.learners.values(), *experiment.earlier.values()]
    everything = [line for each in everyone for line in each.lines]
    for line in experiment.epoch_ends:
        samples = sum(each.samples for each in everything if each.time <= line.time)
        assert line.valid_loss is not None
        yield experiment.elapsed(line.time) / unit.seconds, samples, line.valid_loss


def shares(experiment: Experiment) -> dict[str, list[float]]:
    """Return the shares of the training time: computing, communicating, waiting.

    Returns:
        For each of the three, a number from 0 to 1 for each learner in `learners`.
    """
    found: dict[str, list[float]] = {"computes": [], "communicates": [], "waits": []}
    for learner in experiment.learners.values():
        lines = [line for line in learner.lines if line.seconds]
        seconds = sum(line.seconds for line in lines)
        spent = [
            sum(line.comm_time for line in lines),
            sum(line.wait_time for line in lines),
        ]
        parts = [each / seconds if seconds else 0.0 for each in spent]
        found["computes"].append(1 - sum(parts) if seconds else 0.0)
        found["communicates"].append(parts[0])
        found["waits"].append(parts[1])
    return found


def _svg(figure: Figure, axes: Sequence[Axes], salt: str) -> str:
    for axis in axes:
        axis.grid(alpha=0.3)
    # Text stays text, and the ids of one page's pictures differ by their salts.
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}),
        io.StringIO() as file,
    ):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(NO_METADATA))
        text = file.getvalue()
    return text[text.index("<svg") :]
