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
from statistics import median
from typing import Any

from emulated.learners import exit_on_signals
from report import spread, write_report
from survival.run import Outcome, Settings, run

Figures = dict[str, Any]


def of_survival(outcome: Outcome) -> Figures:
    """Return how a training took the loss of a learner that others survive.

    noticed: seconds from the blow until the last survivor's log names the dead.
    longest: seconds of the longest step of a survivor that ended after the blow.
    before: seconds of the longest step before it.
    step: seconds of the median step before it.
    gap: seconds from the blow until each neighbour of the dead on the ring has
        completed an exchange that began after it; None without gossip.
    ended: whether all survivors have ended all epochs, with all other survivors.
    """
    settings, struck, events = outcome.settings, outcome.struck, outcome.events
    victim = settings.victim
    rest = [rank for rank in range(settings.learners) if rank != victim]
    durations = {
        late: [
            end - begin
            for rank in rest
            for begin, end in events.steps(f"{rank}.0")
            if (end >= struck) == late
        ]
        for late in (False, True)
    }
    return {
        "noticed": max(_noticed(outcome, rank) for rank in rest) - struck,
        "longest": max(durations[True]),
        "before": max(durations[False]),
        "step": median(durations[False]),
        "gap": _gap(outcome) if settings.algorithm == "adpsgd" else None,
        "ended": outcome.status == 0 and all(_has_ended(outcome, r) for r in rest),
    }


def _noticed(outcome: Outcome, rank: int) -> float:
    """Return when a survivor's log has first named the victim; inf if never."""
    words = f"learner {outcome.settings.victim} has "
    lines = outcome.events.of(f"{rank}.0", "line")
    return min((e["at"] for e in lines if words in e["text"]), default=float("inf"))


def _gap(outcome: Outcome) -> float:
    """Return the seconds after which the neighbours of the dead have exchanged."""
    size, victim = outcome.settings.learners, outcome.settings.victim
    firsts = []
    for rank in {(victim - 1) % size, (victim + 1) % size}:
        found = outcome.events.of(f"{rank}.0", "exchange")
        later = [e["at"] for e in found if e["began"] > outcome.struck]
        firsts.append(min(later, default=float("inf")))
    return max(firsts) - outcome.struck


def _has_ended(outcome: Outcome, rank: int) -> bool:
    settings, name = outcome.settings, f"{rank}.0"
    living = [r for r in range(settings.learners) if r != settings.victim]
    epochs = outcome.events.of(name, "epoch")
    whole = len(epochs) == settings.epochs and epochs[-1]["members"] == living
    return whole and bool(outcome.events.of(name, "end"))


def of_waking(outcome: Outcome) -> Figures:
    """Return what a learner does that goes on after three silences.

    told: seconds from when it went on until it ended with an error.
    error: this error.
    averaged: the exchanges with it that were completed after it went on.
    """
    victim, woken = outcome.settings.victim, outcome.woken
    assert woken is not None
    errors = outcome.events.of(f"{victim}.0", "error")
    averaged = sum(
        event["at"] > woken and (name == f"{victim}.0" or event["peer"] == victim)
        for name in outcome.events.found
        for event in outcome.events.of(name, "exchange")
    )
    return {
        "told": errors[0]["at"] - woken if errors else float("inf"),
        "error": errors[0]["text"] if errors else "",
        "averaged": averaged,
    }


def of_ending(outcome: Outcome) -> Figures:
    """Return how a training ended that does not survive the loss.

    ended: seconds from the blow until the last of the others has ended with an error.
    named: whether all of these errors name the dead.
    error: one of them.
    """
    settings, events = outcome.settings, outcome.events
    rest = [r for r in range(settings.learners) if r != settings.victim]
    errors = [events.of(f"{rank}.0", "error") for rank in rest]
    texts = [each[0]["text"] for each in errors if each]
    at = [each[0]["at"] if each else float("inf") for each in errors]
    named = [f"learner {settings.victim} has died" in text for text in texts]
    return {
        "ended": max(at) - outcome.struck,
        "named": len(named) == len(rest) and all(named),
        "error": texts[0] if texts else "",
    }


def of_joining(outcome: Outcome) -> Figures:
    """Return how a replacement has joined, and what it has cost the others.

    member: seconds from when it is reachable until it is a member.
    exchange, step: seconds until its first exchange, and until its first step, end.
    processor: the processor's seconds that it has used by then, until the earlier one.
    longest: the longest step of each other learner, from when the replacement is
        reachable until its first exchange, in median steps of that learner before.
    """
    settings, events = outcome.settings, outcome.events
    new = f"{settings.victim}.1"
    [reachable] = events.of(new, "reachable")
    firsts = {what: events.of(new, what)[0] for what in ("session", "exchange", "step")}
    at = {what: event["at"] for what, event in firsts.items()}
    first = min(firsts["exchange"], firsts["step"], key=lambda event: event["at"])
    begin, until = reachable["at"], at["exchange"]
    longest, seconds = [], []
    for rank in range(settings.learners):
        if rank == settings.victim:
            continue
        steps = events.steps(f"{rank}.0")
        usual = median(e - b for b, e in steps if e < begin and b > outcome.struck)
        here = [e - b for b, e in steps if e > begin and b < until]
        seconds.append(usual)
        longest.append(max(here) / usual)
    return {
        "member": at["session"] - begin,
        "exchange": at["exchange"] - begin,
        "step": at["step"] - begin,
        "processor": first["processor"] - reachable["processor"],
        "usual": median(seconds),
        "longest": longest,
    }


LEARNERS = 4
DEATHS = Settings()
STOPS = replace(DEATHS, stopped=True, heartbeat=5.0, steps=450, epochs=1)
JOINS = Settings(
    parameters=35_000_000, seconds=1.0, steps=30, epochs=1, after=4, restarts=1
)
BLOCKS = {"local_sgd": {"period": 8}, "bmuf_adam": {"period": 8}}

Row = dict[str, Any]


class Part:
    """One part of the benchmark: runs of several cases, and their table.

    Args:
        cases: the settings of the runs, by the label of the row.
        figures: returns the figures of a run.
        columns: what the table shows of the figures of a row's runs, by its heading.
        victims: the learners that are lost in turn.
    """

    def __init__(
        self,
        cases: dict[str, Settings],
        figures: Callable[[Outcome], Figures],
        columns: dict[str, Callable[[list[Figures]], str]],
        victims: Sequence[int] = range(LEARNERS),
    ) -> None:
        self.cases, self._figures, self._columns = cases, figures, columns
        self._victims = victims

    def measure(self, repeats: int, quick: bool, delays: random.Random) -> list[Row]:
        """Run each case `repeats` times with each learner as the victim.

        The repeats of the cases alternate.
        """
        found: dict[str, list[Figures]] = {label: [] for label in self.cases}
        for _ in range(repeats):
            for label, settings in self.cases.items():
                for victim in self._victims[:1] if quick else self._victims:
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
            "its processor's seconds by then": _seconds("processor"),
            "a step of the others": _seconds("usual"),
            "their longest meanwhile, in steps": _longest_of_all,
        },
        victims=(0, 1),  # One that invites others, and one that answers.
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
        f"step asleep ({JOINS.seconds:g} s with 35 M parameters). Learners are lost in "
        f"turn, each {repeats} times: median (min - max). Seconds count from the blow; "
        "those of a replacement from when it has connected to the store, with model "
        "and optimizer built. A step lasts from the end of the one before to its own. "
        "The load average of the machine, at the beginning and after each part: "
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
