"""The share of padding in a recipe's batches, for each of ESPnet's batch types.

Reads the shapes that stage 10 of the recipes has left, and lets ESPnet's own samplers
make the batches: as the recipe does, and of the other types with as many batches. The
share is that of the speech (or line) input: what is added to make all of a batch as
long as its longest.

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
"""Lengths as in `local/feats_raw.sh` and `local/feats_lines.sh`."""

LIMIT = 0.1


class Recipe(NamedTuple):
    """What decides on its batches."""

    name: str
    shapes: list[str]
    config: dict[str, Any]
    fold: tuple[int, int]


Batches = list[tuple[str, ...]]


def read_recipe(folder: Path) -> Recipe:
    """Read a recipe that has run to stage 10.

    Raises:
        InputError: it has not, or more than once with other tokens.
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
    """Read the first dimension of each."""
    rows = (line.split() for line in Path(shape_file).read_text().splitlines())
    return {name: int(shape.split(",")[0]) for name, shape in rows}


def batches(recipe: Recipe, kind: str, bins: int) -> Batches:
    """Let ESPnet make them."""
    sampler = build_batch_sampler(
        type=kind,
        batch_size=recipe.config.get("batch_size", 20),
        batch_bins=bins,
        shape_files=recipe.shapes,
        fold_lengths=recipe.fold,
    )
    return [tuple(keys) for keys in sampler]


def as_many(recipe: Recipe, kind: str, count: int) -> Batches:
    """Let ESPnet make about `count` batches, by the number of bins."""
    low, high = 1, sum(lengths_of(recipe.shapes[0]).values())
    while low < high:  # the fewest bins that give no more batches
        middle = (low + high) // 2
        if len(batches(recipe, kind, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return batches(recipe, kind, low)


def padding(made: Batches, lengths: dict[str, int]) -> float:
    """Return the share of padding, between 0 and 1."""
    padded = sum(len(keys) * max(lengths[k] for k in keys) for keys in made)
    return 1 - sum(lengths[k] for keys in made for k in keys) / padded


def rows_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Compare the batch types for a recipe; its own comes first."""
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
    parser.add_argument("--quick", action="store_true", help="results are not kept")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results")
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
        "Training sets. `length` and `numel` with the batch_bins that give as many "
        "batches. Utterances in each: median (min-max). "
        + (f"Over {LIMIT:.0%}: {', '.join(over)}." if over else "")
        + "The command takes the recipes' directories."
    )
    write_report("padding", args.quick, args.out, table, caption, rows)


if __name__ == "__main__":
    main()
