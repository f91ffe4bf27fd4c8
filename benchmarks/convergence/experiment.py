"""The module has what the experiments share: options, the choice of rates, the plot."""

import argparse
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from report import folder

from convergence.sweep import Result, Sweep
from convergence.training import Training

Row = TypeVar("Row", bound=Hashable)

ENVIRONMENT = "FSDD=/path/to/free-spoken-digit-dataset"
"""The variable that each experiment needs, as reports write it."""


def get_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of an experiment's command, whose docstring is `doc`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fsdd",
        type=Path,
        default=os.environ.get("FSDD") or None,
        help="copy of the Free Spoken Digit Dataset (default: $FSDD)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="try the command, in a minute"
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    return parser


def start(
    name: str,
    args: argparse.Namespace,
    prepare: Callable[[Path], None],
    compute: Callable[[Any], Result],
) -> Sweep:
    """Prepare the data, and return the sweep with the results of earlier runs.

    Args:
        name: the name of the command.
        args: its arguments.
        prepare: a function that writes the data, given the folder of FSDD.
        compute: a function that returns the result of a training.
    """
    if args.fsdd is None:
        raise SystemExit("error: set FSDD=/path/to/free-spoken-digit-dataset")
    prepare(args.fsdd)
    path = folder(args.quick, args.out) / f"{name}.jsonl"
    return Sweep(path, compute, args.workers)


@dataclass(frozen=True)
class Best:
    """The results of a method at its best learning rate, with all seeds.

    Attributes:
        lr: the best learning rate.
        losses: the held-out loss of each seed whose training did not diverge.
        diverged: the number of seeds whose training diverged.
        trained: the loss in training, averaged over the seeds that did not diverge.
        rates: learning rate -> held-out loss with the first seed, or None if the
            training diverged.
    """

    lr: float
    losses: list[float]
    diverged: int
    trained: float
    rates: dict[float, float | None]

    @property
    def held_out(self) -> str:
        """The mean and the range of the held-out losses, for the table."""
        if not self.losses:
            return "diverged"
        mean = sum(self.losses) / len(self.losses)
        text = f"{mean:.3f} ({min(self.losses):.3f} - {max(self.losses):.3f})"
        return text + f", {self.diverged} diverged" * bool(self.diverged)

    @property
    def others(self) -> str:
        """The other learning rates with their losses, for the table."""
        return ", ".join(
            f"{rate:.3g}: {'diverged' if loss is None else f'{loss:.3f}'}"
            for rate, loss in self.rates.items()
            if rate != self.lr
        )

    def data(self) -> dict[str, Any]:
        """Return the figures for the JSON file."""
        return {"lr": self.lr, "held_out": self.losses, "rates": self.rates}


def best_rates(
    sweep: Sweep, rows: Mapping[Row, Sequence[Training]], seeds: Sequence[int]
) -> dict[Row, Best]:
    """Run each row's trainings, and then the best of each row with the other seeds.

    Args:
        sweep: the sweep that runs the trainings.
        rows: row -> its trainings, which have the first seed and differ only in their
            learning rate.
        seeds: all seeds.
    """

    def loss(cell: Training) -> float:
        held_out = sweep[cell]["held_out"]
        return float("inf") if held_out is None else float(held_out)

    sweep.run(cell for cells in rows.values() for cell in cells)
    chosen = {row: min(cells, key=loss) for row, cells in rows.items()}
    repeats = {
        row: [replace(cell, seed=seed) for seed in seeds]
        for row, cell in chosen.items()
    }
    sweep.run(cell for cells in repeats.values() for cell in cells)
    best = {}
    for row, cells in repeats.items():
        good = [sweep[c] for c in cells if sweep[c]["held_out"] is not None]
        best[row] = Best(
            lr=chosen[row].lr,
            losses=[result["held_out"] for result in good],
            diverged=len(cells) - len(good),
            trained=sum(r["trained"] for r in good) / len(good) if good else 0.0,
            rates={c.lr: sweep[c]["held_out"] for c in rows[row]},
        )
    return best


def plot(
    path: Path,
    curves: Mapping[str, Mapping[int, Sequence[float]]],
    x_label: str,
    y_label: str,
) -> None:
    """Plot a curve of mean losses for each name, with the range over the seeds.

    Args:
        path: the path of the PNG file, without its suffix.
        curves: name -> x -> the loss of each seed.
        x_label: the label of the x axis, which is logarithmic.
        y_label: the label of the y axis, which is logarithmic.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, points in curves.items():
        known = {x: losses for x, losses in points.items() if losses}
        means = [sum(losses) / len(losses) for losses in known.values()]
        below = [m - min(x) for m, x in zip(means, known.values(), strict=True)]
        above = [max(x) - m for m, x in zip(means, known.values(), strict=True)]
        axes.errorbar(
            list(known), means, yerr=[below, above], marker="o", capsize=3, label=name
        )
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
    xs = sorted({x for points in curves.values() for x in points})
    axes.set_xticks(xs, [str(x) for x in xs], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:.2g}")
    axes.legend()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    pyplot.close(figure)
