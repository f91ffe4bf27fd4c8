"""The benchmark kills a learner of a real training of digits, and scores the result.

Four learners train the recipe of spoken digits by AD-PSGD under `bin.launch`, shortened
as `trainings.py` shortens it. In the second of three epochs learner `seed % 4` gets
SIGKILL. The others train on, the launcher starts another process in its place, and that
one joins them. With the same seed nobody is killed in another training, at the same
commit and on the same machine.

Each training adds a line to killed_training.jsonl when it has ended, so the command can
be stopped at any time and goes on where it was.

    FSDD=/path python benchmarks/killed_training.py
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convergence.paired import Interval
from emulated.learners import fork
from recipes.cell import Cell
from recipes.plan import CONSISTENT
from recipes.recipe import RECIPES
from recipes.tables import in_words, paired
from recipes.training import BUILD, command, measure, prepare, use_this_checkout
from report import folder, machine, write_report

LEARNERS = 4
INTO_EPOCH = 3.0
"""Seconds from the end of the first epoch to the kill."""
LIMIT = 3600.0


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, help="folder of the results")
    return parser


def train(cell: Cell, victim: int | None) -> dict[str, Any]:
    """Train a cell whose learner `victim` is killed; return its figures.

    Args:
        cell: the training.
        victim: the learner; None if nobody is killed.

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
        while victim is not None and not (folder / "1epoch.pth").exists():
            if running.poll() is not None:
                raise SystemExit(f"error: the training has ended early, see {log}")
            time.sleep(0.2)
        if victim is not None:
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
        "machine": machine(),
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


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table.

    Args:
        rows: the figures of all trainings; `victim` is None where nobody was killed.
    """
    lines = [
        "| seed | killed | returned | WER known / unseen / all | undisturbed | "
        "validation loss | undisturbed |",
        "| --: | --: | :-- | :-- | :-- | --: | --: |",
    ]
    others = {row["seed"]: row for row in rows if row["victim"] is None}
    for row in rows:
        if row["victim"] is not None and row["seed"] in others:
            other = others[row["seed"]]
            lines.append(
                f"| {row['seed']} | learner {row['victim']} | "
                f"{'yes' if row['returned'] else 'no'} | {_rates(row)} | "
                f"{_rates(other)} | {row['valid_loss']:.3f} | "
                f"{other['valid_loss']:.3f} |"
            )
    return lines


def difference(rows: list[dict[str, Any]]) -> str:
    """Return in a sentence how the trainings differ, paired by their seeds."""
    killed = {r["seed"]: r for r in rows if r["victim"] is not None}
    others = {r["seed"]: r for r in rows if r["victim"] is None}

    def compared(figure: Callable[[dict[str, Any]], float]) -> Interval | None:
        values = {seed: figure(row) for seed, row in killed.items()}
        return paired(values, {seed: figure(row) for seed, row in others.items()})

    wer = compared(lambda row: row["wer"]["all"])
    loss = compared(lambda row: row["valid_loss"])
    if wer is None or loss is None:
        return ""
    rates = [row["wer"]["all"] for row in others.values()]
    return (
        "A death changes the word error rate of all strings by "
        f"{in_words(wer, '.2f')} percentage points, and the loss by "
        f"{in_words(loss, '.3f')}: the mean of the paired differences and its 95 % "
        f"interval. The undisturbed trainings have {min(rates):.1f} to "
        f"{max(rates):.1f} %."
    )


def _rates(figures: dict[str, Any]) -> str:
    wer = figures["wer"]
    return " / ".join(f"{wer[half]:.1f}" for half in ("known", "unseen", "all"))


def main() -> None:
    """Train with each seed, and write the table."""
    args = get_parser().parse_args()
    use_this_checkout()
    prepare(RECIPES["fsdd"])
    lines = folder(False, args.out) / "killed_training.jsonl"
    known = lines.read_text().splitlines() if lines.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in known]
    for seed in args.seeds:
        cell = Cell(
            recipe="fsdd",
            learners=LEARNERS,
            algorithm="adpsgd",
            options=CONSISTENT,
            seed=seed,
        )
        for victim in (None, seed % LEARNERS):
            if (seed, victim) in {(row["seed"], row["victim"]) for row in rows}:
                continue
            rows.append(train(cell, victim))
            with lines.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    commits = sorted({row["machine"]["commit"] for row in rows})
    caption = (
        f"FSDD, {LEARNERS} learners, adpsgd, three epochs; a learner is killed by "
        f"SIGKILL {INTO_EPOCH:g} s into the second one, and its replacement joins. "
        f"Word error rates in percent. {difference(rows)} "
        f"Measured commits: {', '.join(commits)}."
    )
    write_report(
        "killed_training",
        False,
        args.out,
        table(rows),
        caption,
        rows,
        seeds=args.seeds,
        repeats=1,
        environment="FSDD=/path/to/free-spoken-digit-dataset",
    )


if __name__ == "__main__":
    main()
