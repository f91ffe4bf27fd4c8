"""The module plots the outcomes of simulated trials."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_distopt.simulation.study.outcome import Outcome, Point

HELD_OUT_LOSS = "held-out loss of the consensus model"
STYLES = ("-", "--", "-.", ":")
"""A line style stands for a number of learners; a colour stands for a method."""


def plot(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the plots into `folder`, as PNG files.

    The speed-up is plotted only if the outcomes have several numbers of learners.
    """
    _curves(
        outcomes,
        folder / "loss_against_time.png",
        "virtual time (s)",
        HELD_OUT_LOSS,
        lambda point: (point.seconds, point.loss),
    )
    _curves(
        outcomes,
        folder / "loss_against_samples.png",
        "samples",
        HELD_OUT_LOSS,
        lambda point: (point.samples, point.loss),
    )
    _curves(
        outcomes,
        folder / "consensus_distance.png",
        "samples",
        "consensus distance",
        lambda point: (point.samples, point.consensus_distance),
    )
    if len({outcome.learners for outcome in outcomes}) > 1:
        _speedup(outcomes, folder / "speedup.png")


def _curves(
    outcomes: Sequence[Outcome],
    path: Path,
    x_label: str,
    y_label: str,
    of: Callable[[Point], tuple[float, float]],
) -> None:
    """Plot one curve for each outcome; a logarithmic axis cannot show y = 0."""
    figure, axes = _axes(x_label, y_label)
    names = list(dict.fromkeys(outcome.method.name for outcome in outcomes))
    sizes = list(dict.fromkeys(outcome.learners for outcome in outcomes))
    for outcome in outcomes:
        points = [point for point in map(of, outcome.history) if point[1] > 0]
        if not points:
            continue
        axes.plot(
            *zip(*points, strict=True),
            color=f"C{names.index(outcome.method.name)}",
            linestyle=STYLES[sizes.index(outcome.learners) % len(STYLES)],
            marker=".",
            label=f"{outcome.method.name}, {outcome.learners}",
        )
    axes.set_yscale("log")
    if axes.lines:
        figure.legend(
            title="algorithm, learners", loc="outside right upper", handlelength=4
        )
    figure.savefig(path)


def _speedup(outcomes: Sequence[Outcome], path: Path) -> None:
    figure, axes = _axes("learners", "speed-up")
    most = max(outcome.learners for outcome in outcomes)
    axes.plot([0, most], [0, most], color="grey", linestyle=":", label="linear")
    for name in dict.fromkeys(outcome.method.name for outcome in outcomes):
        points = sorted(
            (outcome.learners, outcome.speedup)
            for outcome in outcomes
            if outcome.method.name == name and outcome.speedup is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    figure.legend(loc="outside right upper")
    figure.savefig(path)


def _axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label, title="simulated")
    axes.grid(alpha=0.3)
    return figure, axes
