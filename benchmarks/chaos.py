"""The benchmark torments a training, and measures what that costs and what it breaks.

Eight learners train by adpsgd in a plain loop with a session, under
`espnet_distopt.bin.launch` with restarts. A tormentor injects faults that a seed
chooses, every 15 s. Steps sleep in place of an accelerator, because two cores cannot
compute for eight learners; everything else is real. The cases are

    kills         kill -9 of a random learner, rank 0 included
    mixed         kills, of two at once, and of a replacement as it joins; SIGSTOP,
                  shorter and longer than the heartbeat

Capacity is measured in the calm stretches of the same run, before and after the faults:
c, the batches that a learner trains in a second. Goodput is, between the first fault
and the end of the last one,

    batches trained by all / (c x learner-seconds that lived)

A learner lives from its first step to its death or its end. So one that is being
restarted is no capacity, and a batch that has made the first step is not counted, as
its seconds are not. One that is stopped is no capacity until it goes on.

    python benchmarks/chaos.py                # both cases: an hour and a half
"""

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from emulated.learners import exit_on_signals
from report import write_report
from survival.run import START, Events, HangError, Settings, Training, rank_of

Span = tuple[float, float]
"""The begin and the end of a stretch, in seconds."""
FULL = Settings(
    learners=8, seconds=0.1, steps=190, epochs=10**6, heartbeat=10.0, restarts=9999
)
PATIENCE = 120.0
"""Seconds after which learners that do not all step count as hanging."""
WATCHED = 15.0
"""Seconds for which the others are watched after a fault."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A case, and how long it is.

    Attributes:
        kinds: the kinds of faults, one of which is drawn each time; see `FAULTS`.
        count: the number of faults.
        every: the seconds from the begin of one fault to the begin of the next.
        calm: the seconds of each calm stretch.
        settings: what the learners do.
    """

    kinds: tuple[str, ...]
    count: int
    every: float = 15.0
    calm: float = 30.0
    settings: Settings = FULL


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What was done to a process.

    Attributes:
        name: the process, as RANK.INCARNATION.
        at: when.
        until: when it went on; infinite if it was killed.
    """

    name: str
    at: float
    until: float = float("inf")


@dataclass
class Torment:
    """A training, and what was done to it.

    Attributes:
        training: the training.
        random: chooses the faults.
        blows: what was done.
        calm: the calm stretches.
        begin, end: the stretch with faults.
    """

    training: Training
    random: Random
    blows: list[Blow] = field(default_factory=list)
    calm: list[Span] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0

    def run(self, plan: Plan) -> None:
        """Make a calm stretch, the faults and another calm stretch; end the training.

        Raises:
            HangError: learners hang.
        """
        self.training.until(self.all_step, START)
        self._rest(plan.calm)
        self.begin = time.monotonic()
        for number in range(plan.count):
            FAULTS[self.random.choice(plan.kinds)](self)
            due = self.begin + plan.every * (number + 1)
            time.sleep(max(0.0, due - time.monotonic()))
        self.end = time.monotonic()
        self.training.until(self.all_step, PATIENCE + START)
        self._rest(plan.calm)
        (self.training.directory / "end").touch()
        self.training.until(lambda: self.training.ended, PATIENCE + START)

    def _rest(self, seconds: float) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        self.calm.append((begin, time.monotonic()))

    def all_step(self) -> bool:
        """Return whether the present process of each learner lives and has stepped."""
        events = self.training.read()
        names = [events.latest(r) for r in range(self.training.settings.learners)]
        return all(n and events.of(n, "step") and self.lives(n) for n in names)

    def lives(self, name: str) -> bool:
        """Return whether a process is there and has not ended."""
        try:
            stat = Path(f"/proc/{self.training.pid(name)}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def victim(self, but: int = -1) -> str:
        """Return the living process of a random learner, which may be joining."""
        while True:
            rank = self.random.randrange(self.training.settings.learners)
            name = self.training.read().latest(rank)
            if rank != but and name is not None and self.lives(name):
                return name
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill a process."""
        self.blows.append(Blow(name=name, at=time.monotonic()))
        with suppress(ProcessLookupError):
            os.kill(self.training.pid(name), signal.SIGKILL)

    def stop(self, silences: tuple[float, float]) -> None:
        """Stop a learner for some heartbeats, and let it go on."""
        seconds = self.random.uniform(*silences) * self.training.settings.heartbeat
        name, at = self.victim(), time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self.training.pid(name), signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(self.training.pid(name), signal.SIGCONT)
        self.blows.append(Blow(name=name, at=at, until=time.monotonic()))


def kill(torment: Torment) -> None:
    """Kill a random learner."""
    torment.kill(torment.victim())


def kill_two(torment: Torment) -> None:
    """Kill two learners at once, so that two join at about the same time."""
    first = torment.victim()
    second = torment.victim(but=rank_of(first))
    torment.kill(first)
    torment.kill(second)


def kill_joiner(torment: Torment) -> None:
    """Kill a learner, and its replacement while that starts, joins or begins."""
    first = torment.victim()
    rank = rank_of(first)
    torment.kill(first)
    event = torment.random.choice(["process", "reachable", "session"])

    def noted() -> bool:
        name = torment.training.read().latest(rank)
        events = torment.training.events
        return name not in (None, first) and bool(events.of(str(name), event))

    torment.training.until(noted, START)
    time.sleep(torment.random.uniform(0, 0.5))
    torment.kill(str(torment.training.events.latest(rank)))


FAULTS: dict[str, Callable[[Torment], None]] = {
    "kill": kill,
    "two at once": kill_two,
    "then its replacement": kill_joiner,
    "a short stop": lambda torment: torment.stop((0.2, 0.6)),
    "a long stop": lambda torment: torment.stop((1.5, 2.5)),
}
CASES = {
    "kills": Plan(kinds=("kill",), count=200),
    "mixed": Plan(kinds=tuple(FAULTS), count=40),
}


# The figures.


def lives(events: Events, blows: Sequence[Blow], name: str) -> list[Span]:
    """Return when a process has lived: from its first step, without stops."""
    steps = events.of(name, "step")
    if not steps:
        return []
    spans, begin, end = [], steps[0]["at"], events.found[name][-1]["at"]
    for blow in (blow for blow in blows if blow.name == name):
        spans.append((begin, min(blow.at, end)))
        begin = blow.until
    return [(a, b) for a, b in [*spans, (begin, end)] if a < b]


def speed(events: Events, blows: Sequence[Blow], within: Span) -> tuple[int, float]:
    """Return the batches that were trained and the learner-seconds that lived."""
    batches, seconds = 0, 0.0
    for name in events.found:
        for begin, end in lives(events, blows, name):
            seconds += max(0.0, min(end, within[1]) - max(begin, within[0]))
        times = [step["at"] for step in events.of(name, "step")[1:]]
        batches += sum(within[0] <= at < within[1] for at in times)
    return batches, seconds


def pauses(events: Events, blows: Sequence[Blow]) -> Iterator[float]:
    """Yield the longest time without a step of a survivor, after each blow."""
    lived = [
        (rank_of(name), begin, end, [s["at"] for s in events.of(name, "step")])
        for name in events.found
        for begin, end in lives(events, blows, name)
    ]
    for number, blow in enumerate(blows):
        later = [each.at for each in blows[number + 1 :] if each.at > blow.at + 1]
        until = min([*later, blow.at + WATCHED])
        longest = 0.0
        for rank, begin, end, steps in lived:
            if rank != rank_of(blow.name) and begin < blow.at < end:
                alive = [at for at in steps if begin <= at <= end]
                gaps = ((a, b) for a, b in pairwise(alive) if b > blow.at and a < until)
                longest = max([longest, *(b - a for a, b in gaps)])
        yield longest


def dealt(events: Events, items: int) -> dict[str, int]:
    """Count the batches of all epochs that have ended: lost, and repeated ones."""
    trained: dict[int, Counter[int]] = {}
    for name in events.found:
        for step in events.of(name, "step"):
            trained.setdefault(step["epoch"], Counter())[step["item"]] += 1
    ended = {e["epoch"] for name in events.found for e in events.of(name, "epoch")}
    counts = [trained.get(epoch, Counter()) for epoch in ended]
    return {
        "dealt": items * len(counts),
        "lost": sum(items - len(each) for each in counts),
        "repeated": sum(each.total() - len(each) for each in counts),
    }


def broken(events: Events, blows: Sequence[Blow]) -> list[str]:
    """Return which invariants of gossip training were broken, in words."""
    found = []
    norms: dict[int, set[float]] = {}
    for name in events.found:
        for epoch in events.of(name, "epoch"):
            norms.setdefault(epoch["epoch"], set()).add(epoch["norm"])
    for number, each in norms.items():
        if len(each) > 1:
            found.append(f"epoch {number} has ended with consensus models {each}")
    # A process that is killed may have applied an exchange without having noted it.
    ends: Counter[Span] = Counter()
    for name in events.found:
        rank = rank_of(name)
        ends.update((rank, e["peer"]) for e in events.of(name, "exchange"))
    for one, other in sorted({(min(pair), max(pair)) for pair in ends}):
        dead = sum(rank_of(b.name) in (one, other) for b in blows)
        if abs(ends[one, other] - ends[other, one]) > dead:
            found.append(f"learners {one} and {other} have applied unequal exchanges")
    return found


def summary(torment: Torment, hang: str | None) -> dict[str, Any]:
    """Return the figures of a run; `hang` says who has hung."""
    events, blows = torment.training.read(), torment.blows
    settings = torment.training.settings
    calm = [speed(events, blows, span) for span in torment.calm]
    capacity = sum(count for count, _ in calm) / sum(seconds for _, seconds in calm)
    batches, living = speed(events, blows, (torment.begin, torment.end))
    longest = sorted(pauses(events, blows))
    return {
        "learners": settings.learners,
        "blows": len(blows),
        "calm": [count / seconds for count, seconds in calm],
        "goodput": batches / (capacity * living),
        "pause": [median(longest), longest[int(0.95 * len(longest))], longest[-1]],
        **dealt(events, settings.steps * settings.learners),
        "hang": hang,
        "broken": broken(events, blows),
        "status": torment.training.launcher.poll(),
    }


def measure(plan: Plan, seed: int) -> dict[str, Any]:
    """Run a case, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        torment = Torment(Training(Path(folder), plan.settings), Random(seed))
        hang = None
        try:
            torment.run(plan)
        except HangError as error:
            hang = str(error)
            torment.end = torment.end or time.monotonic()
        finally:
            torment.training.end()
        return summary(torment, hang)


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| case | learners | faults | goodput of the living | longest pause in s "
        "| batches lost / repeated / dealt | hangs | invariants broken |",
        "| :-- |" + " --: |" * 7,
    ]
    for case, each in found.items():
        pause = ", ".join(f"{value:.2f}" for value in each["pause"])
        lines.append(
            f"| {case} | {each['learners']} | {each['blows']} | {each['goodput']:.3f} "
            f"| {pause} | {each['lost']} / {each['repeated']} / {each['dealt']} "
            f"| {int(each['hang'] is not None)} | {len(each['broken'])} |"
        )
    return lines


def quick(plan: Plan) -> Plan:
    """Return a plan with few learners and two faults."""
    settings = Settings(
        learners=4, seconds=0.05, steps=60, epochs=10**6, heartbeat=3.0, restarts=99
    )
    return Plan(kinds=plan.kinds, count=2, every=8.0, calm=4.0, settings=settings)


def main() -> None:
    """Run the cases, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--quick", action="store_true", help="few learners and faults")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    found = {}
    with exit_on_signals():
        for case in args.case:
            plan = quick(CASES[case]) if args.quick else CASES[case]
            found[case] = measure(plan, args.seed)
            print(case, found[case], flush=True)
    caption = (
        f"The learners train by adpsgd; a step sleeps {plan.settings.seconds:g} s. A "
        f"fault comes every {plan.every:g} s, or when the last one is over. "
        f"heartbeat_seconds is {plan.settings.heartbeat:g}. The longest pause is that "
        "between two steps of a survivor until the next fault: the median, the 95th "
        "percentile and the largest. A lost batch is one that a learner had begun when "
        "it died."
    )
    write_report(
        "chaos",
        args.quick,
        args.out,
        table(found),
        caption,
        found,
        seeds=[args.seed],
        repeats=1,
    )


if __name__ == "__main__":
    main()
