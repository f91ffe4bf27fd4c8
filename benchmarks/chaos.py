"""The benchmark torments a training, and measures what that costs and what it breaks.

Eight learners train a small network by adpsgd in a plain loop with a session, under
`espnet_distopt.bin.launch` with restarts. A tormentor injects faults that a seed
chooses. Steps sleep in place of an accelerator, because two cores cannot compute for
eight learners; everything else is real. `faults/figures.py` defines the figures. The
cases are

    kills         kill -9 of a random learner, rank 0 included, every 15 s
    mixed         kills, of two at once, of a replacement as it joins, and of the
                  learner whose state it takes; SIGSTOP, shorter and longer than the
                  heartbeat
    links         cut links, shorter and longer than the heartbeat, and slow ones; each
                  learner is in a network namespace (as root)
    undisturbed   trainings as long as that of the kills, with other seeds

    python benchmarks/chaos.py --case kills undisturbed   # an hour, and an hour
    python benchmarks/chaos.py                            # all cases

Each case adds a line to chaos.jsonl, and the tables are of the last line of each case.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulated.namespaces import network
from faults.cases import LINKS, MIXED, Plan, torment, undisturbed
from faults.figures import Row, measured_on, table
from report import folder, machine, write_report

from espnet_distopt.errors import InputError, one_line_errors

CASES = ("kills", "mixed", "links", "undisturbed")
RATE = 1000
"""Mbit/s of an emulated link that is not slow."""


@dataclass(frozen=True)
class Size:
    """How long the cases are.

    Attributes:
        plan: the training of the kills.
        faults: the number of faults of the cases `mixed` and `links`.
        undisturbed: the number of undisturbed trainings.
    """

    plan: Plan
    faults: int
    undisturbed: int


def measure(case: str, size: Size, work: Path, rows: Sequence[Row]) -> list[Row]:
    """Run a case, and return its rows.

    Args:
        case: its name.
        size: how long it is.
        work: the folder of the learners' notes.
        rows: what was measured before.
    """
    plan = size.plan
    few = Plan(**{**vars(plan), "count": size.faults, "rounds": 1})
    here = work / case
    if case == "kills":
        return [_row(case, plan, torment(here, plan))]
    if case == "mixed":
        mixed = Plan(**{**vars(few), "faults": MIXED})
        return [_row(case, mixed, torment(here, mixed))]
    if case == "links":
        with network(plan.learners, RATE) as places:
            cut = {"faults": LINKS, "places": tuple(places)}
            links = Plan(**{**vars(few), **cut})
            return [_row(case, links, torment(here, links))]
    epochs = _epochs(rows)
    seeds = range(plan.seed + 1, plan.seed + 1 + size.undisturbed)
    plans = [Plan(**{**vars(plan), "seed": seed}) for seed in seeds]
    return [
        _row(case, each, undisturbed(here / str(each.seed), each, epochs))
        for each in plans
    ]


def _epochs(rows: Sequence[Row]) -> int:
    """Return how many epochs the training of the kills has had."""
    found = [row["figures"] for row in rows if row["case"] == "kills"]
    if not found:
        raise InputError(
            "undisturbed trainings are as long as the kills: run these first"
        )
    return int(found[-1]["batches"]["epochs"])


def _row(case: str, plan: Plan, figures: dict[str, Any]) -> Row:
    """Return the row of a case."""
    return {
        "case": case,
        "learners": plan.learners,
        "seed": plan.seed,
        "every": plan.every,
        "step": plan.step,
        "heartbeat": plan.heartbeat,
        "machine": machine(),
        "figures": figures,
    }


def latest(rows: Sequence[Row]) -> list[Row]:
    """Return the last row of each case, and of each seed of undisturbed trainings."""
    found: dict[tuple[str, int], Row] = {}
    for row in (row for row in rows if row["case"] in CASES):
        seed = row["seed"] if row["case"] == "undisturbed" else -1
        found[row["case"], seed] = row
    order = {case: number for number, case in enumerate(CASES)}
    return sorted(found.values(), key=lambda row: (order[row["case"]], row["seed"]))


def _caption(plan: Plan) -> str:
    return (
        f"{plan.learners} learners train by adpsgd, each step of which sleeps "
        f"{plan.step:g} s. A fault comes every {plan.every:g} s, or when the last one "
        f"is over. heartbeat_seconds is {plan.heartbeat:g}. Three numbers in a cell "
        "are the median, the 95th percentile and the largest. `Heals` is from a fault "
        "until a survivor on one side of the lost learner exchanges with one on the "
        "other; where no edge closes the ring over its end, there is no such exchange. "
        "`Pause` is the longest one between two steps of a survivor until the next "
        "fault. `Away` is from a death to the first step of the replacement, which has "
        "to import PyTorch first. A lost batch is one that a learner had begun when it "
        "died. `Of all places` counts all learners as capacity all the time."
    )


def _repeating(args: argparse.Namespace, cases: Sequence[str]) -> list[str]:
    """Return the arguments that repeat all cases of the tables."""
    numbers = ["--kills", args.kills, "--every", f"{args.every:g}", "--seed", args.seed]
    quick = ["--quick"] * args.quick
    return ["--case", *dict.fromkeys(cases), *map(str, numbers), *quick]


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the cases, print the tables and write them to benchmarks/results/."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--kills", type=int, default=200, help="kills in all")
    parser.add_argument("--every", type=float, default=15.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0, help="of faults and training")
    parser.add_argument("--quick", action="store_true", help="few learners and faults")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--work", type=Path, help="folder of the learners' notes")
    args = parser.parse_args(cmd)
    if args.kills < 1 or not args.every > 0:
        parser.error("--kills and --every: expected positive numbers")
    plan = Plan(count=args.kills, every=args.every, seed=args.seed)
    size = Size(plan, faults=40, undisturbed=3)
    if args.quick:
        few = Plan(learners=4, count=2, every=5, rounds=1, calm=3, step=0.05)
        size = Size(few, faults=2, undisturbed=1)
    work = args.work or Path(tempfile.mkdtemp(prefix="chaos-"))
    lines = folder(args.quick, args.out) / "chaos.jsonl"
    lines.parent.mkdir(parents=True, exist_ok=True)
    before = lines.read_text().splitlines() if lines.exists() else []
    rows: list[Row] = [json.loads(line) for line in before]

    for case in args.case:
        new = measure(case, size, work, rows)
        rows.extend(new)
        with lines.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in new)
    found = latest(rows)
    write_report(
        "chaos",
        args.quick,
        args.out,
        table(found),
        f"{_caption(size.plan)} {measured_on(found)}",
        found,
        seeds=sorted({row["seed"] for row in found}),
        repeats=1,
        arguments=_repeating(args, [row["case"] for row in found]),
    )


if __name__ == "__main__":
    main()
