"""The benchmark kills a learner of a real training of digits, and scores the result.

Four learners train the recipe of spoken digits by AD-PSGD under `bin.launch`, shortened
as `trainings.py` shortens it. In the second of three epochs learner `seed % 4` gets
SIGKILL. The others train on, the launcher starts another process in its place, and that
one joins them. The table has the error rates beside those of the trainings with the
same seeds that nobody disturbed (results/trainings/fsdd.jsonl).

    FSDD=/path python benchmarks/killed_training.py --seeds 0 1 2
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from emulated.learners import fork
from recipes.cell import Cell
from recipes.plan import CONSISTENT
from recipes.recipe import RECIPES
from recipes.training import BUILD, command, measure, prepare, use_this_checkout
from report import ROOT, write_report

LEARNERS = 4
UNDISTURBED = ROOT / "benchmarks/results/trainings/fsdd.jsonl"
INTO_EPOCH = 3.0
"""Seconds from the end of the first epoch to the kill."""
LIMIT = 3600.0


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="folder of the results")
    return parser


def train(cell: Cell, victim: int) -> dict[str, Any]:
    """Train a cell whose learner `victim` is killed; return its figures.

    Raises:
        SystemExit: the training has failed, or ended before the kill.
    """
    recipe, folder = RECIPES[cell.recipe], BUILD / "killed" / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module, *arguments = command(cell, folder)
    launch = ["-m", "espnet_distopt.bin.launch", "--nproc", str(LEARNERS)]
    line = [sys.executable, *launch, "--restarts", "1", "-m", module, *arguments]
    log = folder / "train.log"
    with log.open("w") as output:
        running = subprocess.Popen(line, cwd=recipe.path, stdout=output, stderr=output)
        while not (folder / "1epoch.pth").exists():
            if running.poll() is not None:
                raise SystemExit(f"error: the training has ended early, see {log}")
            time.sleep(0.2)
        time.sleep(INTO_EPOCH)
        os.kill(_process(victim, folder), signal.SIGKILL)
        status = running.wait()
    if status != 0:
        raise SystemExit(f"error: the training ended with {status}, see {log}")
    [figures] = fork(measure, [(recipe, folder)], timeout=LIMIT)
    said = log.read_text()
    return {
        "seed": cell.seed,
        "victim": victim,
        "returned": bool(re.search(rf"learner {victim} has joined again", said)),
        **figures,
    }


def _process(rank: int, folder: Path) -> int:
    """Return the process of a learner, whose arguments name the experiment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            arguments = (process / "cmdline").read_bytes()
        except OSError:  # It has ended meanwhile.
            continue
        ours = str(folder).encode() in arguments and b"bin.launch" not in arguments
        if ours and f"RANK={rank}".encode() in environment:
            return int(process.name)
    raise SystemExit(f"error: learner {rank} does not run")


def undisturbed() -> dict[int, dict[str, Any]]:
    """Return seed -> the figures of the training that nobody has disturbed."""
    found = {}
    for line in UNDISTURBED.read_text().splitlines():
        known = json.loads(line)
        cell = Cell.parse(known["cell"])
        method = cell.learners, cell.algorithm, cell.options
        if method == (LEARNERS, "adpsgd", CONSISTENT):
            found[cell.seed] = known["result"]
    return found


def table(rows: list[dict[str, Any]], others: dict[int, dict[str, Any]]) -> list[str]:
    """Return the lines of the table.

    Args:
        rows: the figures of the disturbed trainings.
        others: seed -> the figures of the undisturbed one.
    """
    lines = [
        "| seed | killed | returned | WER known / unseen / all | undisturbed | "
        "validation loss | undisturbed |",
        "| --: | --: | :-- | :-- | :-- | --: | --: |",
    ]
    for row in rows:
        other = others.get(row["seed"])
        lines.append(
            f"| {row['seed']} | learner {row['victim']} | "
            f"{'yes' if row['returned'] else 'no'} | {_rates(row)} | "
            f"{_rates(other) if other else ''} | {row['valid_loss']:.3f} | "
            f"{format(other['valid_loss'], '.3f') if other else ''} |"
        )
    return lines


def _rates(figures: dict[str, Any]) -> str:
    wer = figures["wer"]
    return " / ".join(f"{wer[half]:.1f}" for half in ("known", "unseen", "all"))


def main() -> None:
    """Train with each seed, and write the table."""
    args = get_parser().parse_args()
    use_this_checkout()
    prepare(RECIPES["fsdd"])
    rows = []
    for seed in args.seeds:
        cell = Cell(
            recipe="fsdd",
            learners=LEARNERS,
            algorithm="adpsgd",
            options=CONSISTENT,
            seed=seed,
        )
        rows.append(train(cell, seed % LEARNERS))
        print(json.dumps(rows[-1]), flush=True)
    others = undisturbed()
    rates = [figures["wer"]["all"] for figures in others.values()]
    caption = (
        f"FSDD, {LEARNERS} learners, adpsgd, three epochs; a learner is killed by "
        f"SIGKILL {INTO_EPOCH:g} s into the second one, and its replacement joins. "
        f"Word error rates in percent. Over all {len(rates)} seeds the undisturbed "
        f"trainings have {min(rates):.1f} to {max(rates):.1f} % on all strings."
    )
    write_report(
        "killed_training",
        False,
        args.out,
        table(rows, others),
        caption,
        rows,
        seeds=args.seeds,
        repeats=1,
        environment="FSDD=/path/to/free-spoken-digit-dataset",
    )


if __name__ == "__main__":
    main()
