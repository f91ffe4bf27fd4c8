"""The table of the methods, and of their differences from the recipe as it is."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from recipes.differences import in_words, paired

PARTS = ("known", "unseen", "digits", "all")
CAPTION = (
    "Character error rates in percent on the test lines of mini_ocr, and the mean "
    "validation loss of the last epoch: means over the seeds. In brackets are the mean "
    "of the paired differences from the reference, and its 95 % interval by Student's "
    "t. The reference is a small model that converges in three epochs, without "
    "augmentation, so the error rates are above those of the recipe. Printed lines are "
    "synthetic, and the n-gram knows the word list that their texts are from. A method "
    "without a row has no result yet."
)

Figures = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Method -> seed -> result."""


def table(figures: Figures) -> list[str]:
    """Return the lines of a Markdown table; the first method is the reference."""
    head = ["method", "seeds", "loss", *(f"CER {part}" for part in PARTS)]
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    columns = [_losses(figures), *(_rates(figures, part) for part in PARTS)]
    for name in figures:
        cells = [_cell(column, name, name == next(iter(figures))) for column in columns]
        lines.append(f"| {name} | {len(figures[name])} | {' | '.join(cells)} |")
    return lines


Column = Mapping[str, Mapping[int, float]]
"""Method -> seed -> figure."""


def _losses(figures: Figures) -> Column:
    return {
        name: {
            s: r["valid_losses"][-1] for s, r in results.items() if r["valid_losses"]
        }
        for name, results in figures.items()
    }


def _rates(figures: Figures, part: str) -> Column:
    return {
        name: {s: r["cer"][part] for s, r in results.items()}
        for name, results in figures.items()
    }


def _cell(column: Column, name: str, is_reference: bool) -> str:
    if not column[name]:
        return ""
    value = f"{mean(column[name].values()):.2f}"
    difference = paired(column[name], next(iter(column.values())))
    if is_reference or difference is None:
        return value
    return f"{value} [{in_words(difference, '.2f')}]"
