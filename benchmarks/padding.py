"""The benchmark computes the share of padding in recipes' batches, by batch type.

It reads the shapes that stage 10 of a recipe has written, and lets ESPnet's own
samplers make the batches: those of the recipe, and those of the other batch types, with
as many batches. The share is that of the speech or line input. Padding is what makes
all inputs of a batch as long as the longest.

    egs/mini_swbd/asr1/run.sh --stop_stage 10
    python benchmarks/padding.py egs/mini_swbd/asr1      # seconds
"""

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from espnet2.samplers.build_batch_sampler import build_batch_sampler
from report import write_report

from espnet_distopt.errors import InputError

FOLD = {"asr1": (80000, 150), "ocr1": (800, 150)}
"""Kind of recipe -> the fold lengths of its input and its text, which are those of
`local/feats_raw.sh` and `local/feats_lines.sh`."""

LIMIT = 0.1
"""The share of padding above which the caption names a recipe."""


class Recipe(NamedTuple):
    """All on which the batches of a recipe depend.

    Attributes:
        name: the name of the recipe.
        shapes: the paths of the files of shapes, of the input and of the text.
        config: the training configuration.
        fold: the fold lengths of the input and the text.
    """

    name: str
    shapes: list[str]
    config: dict[str, Any]
    fold: tuple[int, int]


Batches = list[tuple[str, ...]]


def read_recipe(folder: Path) -> Recipe:
    """Read a recipe that has run to stage 10.

    Args:
        folder: the folder of the recipe.

    Raises:
        InputError: the recipe has not run to stage 10, or has run with several kinds of
            tokens.
    """
    found = sorted(folder.glob("exp/stats_*/train/speech_shape"))
    if len(found) != 1:
        raise InputError(
            f"{folder}/exp: {len(found)} directories of statistics where one is "
            "needed: run the recipe with --stop_stage 10"
        )
    texts = sorted(found[0].parent.glob("text_shape.*"))
    config = yaml.safe_load((folder / "conf" / "train.yaml").read_text())
    folder = folder.resolve()
    name = f"{folder.parent.name}/{folder.name}"
    return Recipe(name, [str(found[0]), str(texts[0])], config, FOLD[folder.name])


def lengths_of(shape_file: str) -> dict[str, int]:
    """Return utterance -> its length, the first dimension in a file of shapes."""
    rows = (line.split() for line in Path(shape_file).read_text().splitlines())
    return {name: int(shape.split(",")[0]) for name, shape in rows}


def batches(recipe: Recipe, kind: str, bins: int) -> Batches:
    """Return the batches that ESPnet makes.

    Args:
        recipe: the recipe.
        kind: the batch type.
        bins: the bins of a batch, for batch types that have them.
    """
    sampler = build_batch_sampler(
        type=kind,
        batch_size=recipe.config.get("batch_size", 20),
        batch_bins=bins,
        shape_files=recipe.shapes,
        fold_lengths=recipe.fold,
    )
    return [tuple(keys) for keys in sampler]


def as_many(recipe: Recipe, kind: str, count: int) -> Batches:
    """Return about `count` batches of a type, by choosing the number of bins."""
    low, high = 1, sum(lengths_of(recipe.shapes[0]).values())
    # The search finds the smallest number of bins that gives at most `count` batches.
    while low < high:
        middle = (low + high) // 2
        if len(batches(recipe, kind, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return batches(recipe, kind, low)


def padding(made: Batches, lengths: dict[str, int]) -> float:
    """Return the share of padding in batches, between 0 and 1."""
    padded = sum(len(keys) * max(lengths[k] for k in keys) for keys in made)
    return 1 - sum(lengths[k] for keys in made for k in keys) / padded


def rows_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the figures of each batch type for a recipe; its own type comes first."""
    lengths = lengths_of(recipe.shapes[0])
    own = recipe.config["batch_type"]
    made = {own: batches(recipe, own, recipe.config.get("batch_bins", 1))}
    for kind in ("folded", "sorted", "length", "numel", "unsorted"):
        if kind in made:
            continue
        made[kind] = (
            as_many(recipe, kind, len(made[own]))
            if kind in ("length", "numel")
            else batches(recipe, kind, 1)
        )
    rows = []
    for kind, those in made.items():
        sizes = [len(keys) for keys in those]
        rows.append(
            {
                "recipe": recipe.name,
                "type": kind,
                "own": kind == own,
                "batches": len(those),
                "sizes": [statistics.median(sizes), min(sizes), max(sizes)],
                "padding": padding(those, lengths),
            }
        )
    return rows


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", type=Path, help="e.g. egs/mini_swbd/asr1")
    parser.add_argument("--quick", action="store_true", help="only try the command")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    try:
        rows = [row for path in args.recipes for row in rows_of(read_recipe(path))]
    except InputError as error:
        parser.error(str(error))
    table = [
        "| recipe | batch type | batches | utterances in each | padding |",
        "|---|---|--:|--:|--:|",
    ]
    for row in rows:
        middle, low, high = row["sizes"]
        table.append(
            f"| {row['recipe']} | {row['type']}{' (its own)' * row['own']} | "
            f"{row['batches']} | {middle:g} ({low}-{high}) | {row['padding']:.1%} |"
        )
    over = [row["recipe"] for row in rows if row["own"] and row["padding"] > LIMIT]
    caption = (
        "The sets are training sets. `length` and `numel` have the batch_bins that "
        "give as many batches as the recipe's own type. The number of utterances in a "
        "batch is a median (min-max) over the batches."
        + (f" Over {LIMIT:.0%} of padding: {', '.join(over)}." if over else "")
    )
    write_report(
        "padding",
        args.quick,
        args.out,
        table,
        caption,
        rows,
        seeds=(),
        repeats=1,
    )


if __name__ == "__main__":
    main()
