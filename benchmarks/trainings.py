"""The benchmark trains whole recipes by real processes, and compares them seed by seed.

A cell is a training of a recipe by an algorithm with a seed. Unless its name says
otherwise, all trainings of a recipe have the same learning rate, the same batch of all
learners together, and the same number of epochs. They are shortened
(`recipes/recipe.py`), and decode by the best path.
With equal seeds the initial model and the order of batches are equal, so the table has
the differences from all-reduce by seed, with the 95 % interval of their mean.

The result of each cell is a line of results/trainings/RECIPE.jsonl, with the commit and
the machine. A cell that has a line is not run again, so the command can be stopped at
any time and goes on where it was; the cell that was running is begun anew. A change of
a recipe's settings, or of the arithmetic of `second_moment: consistent`, makes the
cells that it concerns anew (`recipes/version.py`). The most telling cells come first.

    FSDD=/path python benchmarks/trainings.py --list
    FSDD=/path python benchmarks/trainings.py --only '^fsdd/4/' --budget-minutes 60
    python benchmarks/trainings.py --report
    FSDD=/path python benchmarks/trainings.py --defaults

A cell of the digits with four learners takes about 70 s on two quiet cores, and one of
the conformer four minutes.
"""

import argparse
import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from emulated.learners import exit_on_signals
from recipes.cell import Cell
from recipes.plan import defaults, plan
from recipes.recipe import RECIPES
from recipes.records import Records
from recipes.tables import CAPTION, SUMMARY, Row, rows, summary, table
from recipes.training import BUILD, CellFailedError, prepare, run, use_this_checkout
from recipes.version import version
from report import ROOT, machine, write_report

from espnet_distopt.errors import InputError, one_line_errors

RESULTS = ROOT / "benchmarks/results/trainings"


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="cells whose name has this in it"
    )
    parser.add_argument(
        "--budget-minutes",
        type=float,
        default=float("inf"),
        help="begin no cell that would not end in so many minutes (default: no limit)",
    )
    parser.add_argument(
        "--defaults",
        action="store_true",
        help="all algorithms at their defaults, with 2 and 4 learners, in place of the "
        "other comparisons",
    )
    parser.add_argument(
        "--list", action="store_true", help="only show the cells, with what is done"
    )
    parser.add_argument(
        "--report", action="store_true", help="only write the tables of what is done"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the cells that have no result yet, in order, or list or report them."""
    args = get_parser().parse_args(cmd)
    cells = chosen(defaults() if args.defaults else plan(), args.only)
    records = Records(args.out, version)
    if args.list:
        for cell in cells:
            print("done" if cell in records else "    ", cell.name)
    elif args.report:
        write_tables(cells, records, args.out, "defaults_" if args.defaults else "")
    else:
        use_this_checkout()
        with only_run(BUILD / "lock"), exit_on_signals():
            failed = run_cells(cells, records, train, args.budget_minutes)
        if failed:
            sys.exit(f"error: {len(failed)} cells failed: {', '.join(failed)}")


def chosen(cells: Sequence[Cell], pattern: str) -> list[Cell]:
    """Return the cells in whose names the regular expression is found.

    Raises:
        InputError: it is none, or no cell has such a name.
    """
    try:
        found = [cell for cell in cells if re.search(pattern, cell.name)]
    except re.error as error:
        raise InputError(f"--only {pattern}: no regular expression: {error}") from None
    if not found:
        raise InputError(f"--only {pattern}: no such cell, see --list")
    return found


def run_cells(
    cells: Sequence[Cell],
    records: Records,
    train: Callable[[Cell], dict[str, Any]],
    budget: float = float("inf"),
) -> list[str]:
    """Run the cells that have no result, and return the names of those that failed.

    Args:
        cells: the cells in their order.
        records: the results, which get those of the cells.
        train: a function that returns the figures of a cell.
        budget: minutes; no cell is begun that would not end in time, if it took as long
            as the median of those of its recipe so far.
    """
    began = time.monotonic()
    left = [cell for cell in cells if cell not in records]
    print(f"{len(left)} of {len(cells)} cells to train", flush=True)
    taken: dict[tuple[str, int], list[float]] = {}
    failed = []
    for number, cell in enumerate(left, 1):
        start = time.monotonic()
        before = taken.setdefault((cell.recipe, cell.learners), [])
        if start + (median(before) if before else 0) > began + 60 * budget:
            print(f"the budget is used up: {len(left) - number + 1} cells are left")
            break
        try:
            result = train(cell)
        except CellFailedError as error:
            failed.append(cell.name)
            print(f"{cell.name} failed: {error}", file=sys.stderr, flush=True)
            continue
        about = {"machine": machine(), "load": os.getloadavg(), "time": time.time()}
        records.add(cell, result, **about)
        before.append(time.monotonic() - start)
        print(f"{number}/{len(left)} {cell.name}: {result}", flush=True)
    return failed


def train(cell: Cell) -> dict[str, Any]:
    """Train and score a cell, after the stages that prepare its recipe's data."""
    prepare(RECIPES[cell.recipe])
    return run(cell)


def write_tables(
    cells: Sequence[Cell], records: Records, out: Path, prefix: str = ""
) -> None:
    """Write the table of each recipe that has results.

    Args:
        cells: the cells whose results the tables have.
        records: the results.
        out: the folder of the tables.
        prefix: what their names have before the recipe's.

    Raises:
        InputError: none has.
    """
    written: dict[str, list[Row]] = {}
    for name, recipe in RECIPES.items():
        mine = [cell for cell in cells if cell.recipe == name and cell in records]
        if not mine:
            continue
        found = written[name] = rows(mine, records)
        kinds = {_where(records[cell]) for cell in mine}
        caption = (
            f"{recipe.about} {CAPTION} Options: `{recipe.train_args}`. Trained on: "
        )
        caption += f"{'; '.join(sorted(kinds))}."
        data = [vars(row) for row in found]
        seeds = sorted({cell.seed for cell in mine})
        write_report(
            "trainings",
            False,
            out,
            table(recipe, found),
            caption,
            data,
            seeds=seeds,
            repeats=1,
            variant=prefix + name,
        )
    if not written:
        raise InputError("no cell has a result yet: run without --report first")
    if prefix:
        write_report(
            "trainings",
            False,
            out,
            summary(written, [cell.method for cell in cells]),
            SUMMARY,
            [],
            seeds=sorted({cell.seed for cell in cells if cell in records}),
            repeats=1,
            variant="defaults",
        )


def _where(record: dict[str, Any]) -> str:
    """Return the commit, the machine and the versions of a result, in words."""
    where = record["machine"]
    return (
        f"commit {where['commit']}, {where['processor']}, {where['cores']} cores, "
        f"Python {where['python']}, torch {where['torch']}"
    )


@contextmanager
def only_run(lock: Path) -> Iterator[None]:
    """Be the only run that trains in this checkout while the body runs.

    Raises:
        InputError: another run trains.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{lock}: another run trains: wait for its end") from None
        yield


if __name__ == "__main__":
    main()
