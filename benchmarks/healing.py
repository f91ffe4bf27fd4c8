"""The benchmark measures how a training heals when a learner dies.

Four learners train under `espnet_distopt.bin.launch`, which keeps the store in a
process of its own. In the middle of an epoch the benchmark kills one of them, or stops
it, at a random moment. The computing of a step is emulated by sleep, so that four
learners do not fight for two cores; what they send and average is real.

    python benchmarks/healing.py                    # about twenty minutes
    python benchmarks/healing.py --only joins       # one of its parts
"""

import argparse
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from emulated.learners import exit_on_signals
from report import spread, write_report
from survival.figures import (
    Figures,
    of_ending,
    of_joining,
    of_survival,
    of_waking,
)
from survival.run import Outcome, run
from survival.settings import Settings

LEARNERS = 4
DEATHS = Settings()
STOPS = replace(DEATHS, stopped=True, heartbeat=5.0, steps=450, epochs=1)
JOINS = Settings(
    parameters=35_000_000, seconds=1.0, steps=30, epochs=1, after=4, replaced=True
)
BLOCKS = {"local_sgd": {"period": 8}, "bmuf_adam": {"period": 8}}

Row = dict[str, Any]


class Part:
    """One part of the benchmark: runs of several cases, and their table.

    Args:
        cases: the settings of the runs, by the label of the row; each case takes every
            learner in turn.
        figures: returns the figures of a run.
        columns: what the table shows of the figures of a row's runs, by its heading.
    """

    def __init__(
        self,
        cases: dict[str, Settings],
        figures: Callable[[Outcome], Figures],
        columns: dict[str, Callable[[list[Figures]], str]],
    ) -> None:
        self.cases, self._figures, self._columns = cases, figures, columns

    def measure(self, repeats: int, quick: bool, delays: random.Random) -> list[Row]:
        """Run each case `repeats` times with each learner as the victim.

        The repeats of the cases alternate.
        """
        found: dict[str, list[Figures]] = {label: [] for label in self.cases}
        for _ in range(repeats):
            for label, settings in self.cases.items():
                for victim in range(1 if quick else LEARNERS):
                    outcome = run(replace(settings, victim=victim), delays)
                    figures = {"victim": victim, **self._figures(outcome)}
                    print(label, figures, flush=True)
                    found[label].append(figures)
        return [
            {"case": label, "settings": asdict(self.cases[label]), "runs": runs}
            for label, runs in found.items()
        ]

    def table(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield the lines of the table."""
        yield f"| case | runs | {' | '.join(self._columns)} |"
        yield f"| :-- | --: |{' --: |' * len(self._columns)}"
        for row in rows:
            cells = [show(row["runs"]) for show in self._columns.values()]
            yield f"| {row['case']} | {len(row['runs'])} | {' | '.join(cells)} |"


def _seconds(name: str) -> Callable[[list[Figures]], str]:
    """Return what shows the median and the range of a figure in seconds."""

    def show(runs: list[Figures]) -> str:
        values = [each[name] for each in runs if each[name] is not None]
        return f"{spread(values, '.2f')} s" if values else ""

    return show


def _count(name: str) -> Callable[[list[Figures]], str]:
    """Return what shows in how many runs something holds."""
    return lambda runs: f"{sum(map(bool, (each[name] for each in runs)))}"


def _longest_of_all(runs: list[Figures]) -> str:
    """Show the longest steps of the others, in steps."""
    return spread([max(each["longest"]) for each in runs], ".2f")


SURVIVAL = {
    "a step before": _seconds("step"),
    "longest before": _seconds("before"),
    "longest after": _seconds("longest"),
    "all have noticed": _seconds("noticed"),
    "exchange across the gap": _seconds("gap"),
    "epochs ended": _count("ended"),
}
PARTS = {
    "deaths": Part({"adpsgd, killed": DEATHS}, of_survival, SURVIVAL),
    "blocks": Part(
        {
            f"{name}, killed": replace(DEATHS, algorithm=name, options=options)
            for name, options in BLOCKS.items()
        },
        of_survival,
        SURVIVAL,
    ),
    "stops": Part(
        {f"adpsgd, stopped, heartbeat_seconds {STOPS.heartbeat:g}": STOPS},
        lambda outcome: {**of_survival(outcome), **of_waking(outcome)},
        {
            **SURVIVAL,
            "the stopped one ends after it goes on": _seconds("told"),
            "exchanges with it then": lambda runs: str(
                sum(each["averaged"] for each in runs)
            ),
        },
    ),
    "ends": Part(
        {"allreduce, killed": replace(DEATHS, algorithm="allreduce")},
        of_ending,
        {"all others have ended": _seconds("ended"), "name the dead": _count("named")},
    ),
    "joins": Part(
        {"adpsgd, 35 M parameters, killed and replaced": JOINS},
        of_joining,
        {
            "a member after": _seconds("member"),
            "first exchange": _seconds("exchange"),
            "first step": _seconds("step"),
            "a step of the others": _seconds("usual"),
            "their longest meanwhile, in steps": _longest_of_all,
        },
    ),
}
"""The parts of the benchmark, by their names."""


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of one death")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--repeats", type=int, default=3, help="of each victim")
    args = parser.parse_args()
    chosen = [args.only] if args.only else list(PARTS)
    chosen = chosen[:1] if args.quick else chosen
    repeats = 1 if args.quick else args.repeats
    delays, load = random.Random(0), [os.getloadavg()[0]]
    rows, table = {}, []
    with exit_on_signals():
        for name in chosen:
            rows[name] = PARTS[name].measure(repeats, args.quick, delays)
            table += [*PARTS[name].table(rows[name]), ""]
            load.append(os.getloadavg()[0])
    caption = (
        f"{LEARNERS} learners train; computing is emulated, {DEATHS.seconds:g} s a "
        f"step asleep ({JOINS.seconds:g} s with 35 M parameters). Each learner is lost "
        f"in turn, {repeats} times: median (min - max). Seconds count from the blow; "
        "those of a replacement from when it has connected to the store, its model "
        "built. A step lasts from the end of the one before to its own end. The load "
        f"average of the machine, at the beginning and after each part: "
        f"{', '.join(format(each, '.1f') for each in load)}."
    )
    write_report(
        "healing",
        args.quick,
        args.out,
        table[:-1],
        caption,
        {"load": load, "parts": rows},
        seeds=(0,),
        repeats=repeats,
        variant=args.only or "",
    )


if __name__ == "__main__":
    main()
