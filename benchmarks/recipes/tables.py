"""The table of a recipe: what each method reaches, and its distance from all-reduce."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from convergence.paired import Interval, interval

from recipes.cell import Cell
from recipes.recipe import RECIPES, Recipe
from recipes.records import Records


def paired(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> Interval | None:
    """Return the mean of `values - reference` over the seeds of both, None without any.

    Args:
        values: seed -> figure of a method.
        reference: seed -> figure of the method that it is compared with.
    """
    seeds = sorted(values.keys() & reference.keys())
    return interval([values[s] - reference[s] for s in seeds]) if seeds else None


def in_words(difference: Interval, form: str) -> str:
    """Return a mean and its interval, for a table.

    Args:
        difference: the mean; a single pair has no interval.
        form: the format of a number, as `.3f`.
    """
    text = format(difference.mean, f"+{form}")
    if math.isinf(difference.half):
        return text
    return f"{text} ({difference.lower:+{form}} to {difference.upper:+{form}})"


REFERENCE = "allreduce"
CAPTION = (
    "Means over the seeds. The columns `- reference` have the mean of the paired "
    f"differences from {REFERENCE} with equally many learners (one learner alone: from "
    "that with the most seeds), and in brackets its 95 % interval by Student's t. The "
    "loss is the validation loss of the consensus model after the last epoch, whose "
    "best path is scored. The column `width` is that of the loss's interval in percent "
    "of the reference's loss: a difference of less than half of it shows nothing."
)


@dataclass(frozen=True)
class Row:
    """A method with its results by seed.

    Attributes:
        learners: the number of learners.
        method: the algorithm with its options.
        results: seed -> the figures of the training.
    """

    learners: int
    method: str
    results: dict[int, dict[str, Any]]

    def figures(self, *keys: str) -> dict[int, float]:
        """Return seed -> the figure below some keys, where it is known."""
        found: dict[int, float] = {}
        for seed, result in self.results.items():
            value: Any = result
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                found[seed] = value
        return found


def rows(cells: Iterable[Cell], records: Records) -> list[Row]:
    """Return the methods of a recipe's cells that have results, in the cells' order."""
    found: dict[tuple[int, str], Row] = {}
    for cell in cells:
        if cell in records:
            key = cell.learners, cell.method
            row = found.setdefault(key, Row(*key, {}))
            row.results[cell.seed] = records[cell]["result"]
    return list(found.values())


def reference_of(row: Row, all_rows: Sequence[Row]) -> Row | None:
    """Return the reference with equally many learners; `none` takes the best known."""
    found = [other for other in all_rows if other.method == REFERENCE]
    if row.learners == 1:
        return max(found, key=lambda other: len(other.results), default=None)
    return next((other for other in found if other.learners == row.learners), None)


def table(recipe: Recipe, all_rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table with one row for each method."""
    rate = recipe.rate
    halves = [*recipe.halves, "all"]
    head = ["method", "learners", "seeds", "loss", "- reference", "width"]
    head += [f"{rate.upper()} {half} | - reference" for half in halves]
    head += ["leaves the plateau in epoch", "staleness", "CPU seconds"]
    columns = len(" | ".join(head).split("|"))
    lines = [f"| {' | '.join(head)} |", "| :-- |" + " --: |" * (columns - 1)]
    for row in all_rows:
        reference = reference_of(row, all_rows)
        cells = [row.method, str(row.learners), str(len(row.results))]
        loss = _compared(row, reference, ".3f", "valid_loss")
        cells += [*loss, _width(row, reference)]
        for half in halves:
            cells += _compared(row, reference, ".1f", rate, half)
        cells.append(_leaves(row))
        for key, form in (("staleness", ".2f"), ("cpu_seconds", ".0f")):
            cells.append(_mean(row, form, key))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


BEHIND = 1.1
"""So many times the reference's error rate is shown in bold."""

SUMMARY = (
    "Error rates of the best path in per cent, means over seeds: WER of strings and "
    "talks, CER of lines, and the share of wrong frames. A figure is that of three "
    "seeds, or of as many as the brackets say. One in bold is more than 10 % above "
    f"that of {REFERENCE} with equal seeds and as many learners."
)
COLUMNS = {
    "fsdd": "strings",
    "fsdd_hybrid": "frames",
    "mini_ocr": "lines",
    "mini_swbd": "talks",
}


def summary(recipes: Mapping[str, Sequence[Row]], order: Iterable[str]) -> list[str]:
    """Return the lines of a Markdown table of error rates, with a row for each method.

    Args:
        recipes: recipe -> its rows, from which those of two and four learners are used.
        order: the methods in their order, as often as they like.
    """
    known = {row.method for all_rows in recipes.values() for row in all_rows}
    methods = [method for method in dict.fromkeys(order) if method in known]
    cases = [(name, n) for name in COLUMNS if name in recipes for n in (2, 4)]
    heads = [f"{COLUMNS[recipe]}, {learners} learners" for recipe, learners in cases]
    lines = [f"| method | {' | '.join(heads)} |", "| :-- |" + " --: |" * len(heads)]
    for method in methods:
        cells = [_rate(recipes[recipe], n, recipe, method) for recipe, n in cases]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _rate(all_rows: Sequence[Row], learners: int, recipe: str, method: str) -> str:
    found = {row.method: row for row in all_rows if row.learners == learners}
    if method not in found:
        return ""
    keys = RECIPES[recipe].rate, "all"
    own = found[method].figures(*keys)
    text = f"{mean(own.values()):.1f}" + f" ({len(own)})" * (len(own) != 3)
    known = found[REFERENCE].figures(*keys) if REFERENCE in found else {}
    both = own.keys() & known.keys()
    behind = sum(own[s] for s in both) > BEHIND * sum(known[s] for s in both)
    return f"**{text}**" if behind else text


def _mean(row: Row, form: str, *keys: str) -> str:
    values = row.figures(*keys).values()
    return format(mean(values), form) if values else ""


def _leaves(row: Row) -> str:
    """Return the epochs in which the seeds leave CTC's plateau; `-` for never."""
    known = [r["leaves_plateau"] for r in row.results.values() if "leaves_plateau" in r]
    return " ".join("-" if epoch is None else str(epoch) for epoch in known)


def _compared(row: Row, reference: Row | None, form: str, *keys: str) -> list[str]:
    """Return the mean of a figure, and its difference from the reference."""
    difference = None
    if reference is not None and reference is not row:
        difference = paired(row.figures(*keys), reference.figures(*keys))
    return [_mean(row, form, *keys), in_words(difference, form) if difference else ""]


def _width(row: Row, reference: Row | None) -> str:
    """Return the width of the interval of the loss, in percent of the reference's."""
    if reference is None or reference is row:
        return ""
    losses = reference.figures("valid_loss")
    difference = paired(row.figures("valid_loss"), losses)
    if difference is None or math.isinf(difference.half):
        return ""
    return f"{200 * difference.half / mean(losses.values()):.0f} %"
