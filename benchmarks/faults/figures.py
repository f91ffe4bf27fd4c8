"""Goodput, time to heal, and lost batches of a tormented run, from its notes.

Capacity is measured in the calm stretches of the same run, before, between and after
those with faults: c, the batches that a learner trains in a second. Goodput is, in the
stretches with faults,

    batches trained by all / (c x learner-seconds that lived)

On a busy machine calm stretches differ. `goodput_least` takes the c of the fastest one.
A learner lives from its first step to its death or
its end. So one that is being restarted is no capacity from its death to its first step,
and a batch that has made the first step is not counted, as its seconds are not. One
that is stopped or cut off is no capacity until it goes on, or is replaced. All
stretches include the ends of epochs, where the learners wait for each other.

`of all places` is the same with all learners as capacity all the time, dead or not.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from faults.run import Process, Records

Span = tuple[float, float]
"""The begin and the end of a stretch, in seconds."""


class Notes:
    """The notes of a run, and what was done to it.

    Args:
        directory: the folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.records = Records(directory)
        self.records.read()
        faults = directory / "faults.jsonl"
        lines = faults.read_text().splitlines() if faults.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]
        settings = json.loads((directory / "settings.json").read_text())
        self.size: int = settings["learners"]
        self.items: int = settings["items"]

    def spans(self, name: str) -> list[Span]:
        """Return the stretches of a name that have begun and ended."""
        begins = [e["time"] for e in self.done if e["event"] == f"{name} begins"]
        ends = [e["time"] for e in self.done if e["event"] == f"{name} ends"]
        return list(zip(begins, ends, strict=False))

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The deaths and stops, in their order."""
        return [e for e in self.done if e["event"] in ("death", "stop", "slow")]

    def lives(self, process: Process) -> list[Span]:
        """Return when a process has lived: from its first step, without stops."""
        first = process.first_step
        if first is None:
            return []
        key = process.rank, process.incarnation
        ends = [
            e["time"]
            for e in self.done
            if e["event"] == "death" and (e["rank"], e["incarnation"]) == key
        ]
        begin, spans, end = first, [], min([*ends, process.last])
        for event in self.done:
            if (event.get("rank"), event.get("incarnation")) == key:
                if event["event"] == "stop":
                    spans.append((begin, event["time"]))
                    begin = math.inf
                elif event["event"] == "continued":
                    begin = event["time"]
        return [(a, min(b, end)) for a, b in [*spans, (begin, end)] if a < end]

    def speed(self, within: Sequence[Span]) -> tuple[int, float]:
        """Return the batches that were trained and the learner-seconds that lived."""
        batches, seconds = 0, 0.0
        for process in self.records:
            lives = self.lives(process)
            for span in within:
                seconds += sum(_overlap(life, span) for life in lives)
                times = [when for when, _ in process.of("step")[1:]]
                batches += sum(span[0] <= when < span[1] for when in times)
        return batches, seconds

    def batches(self) -> dict[str, int]:
        """Count the batches of all epochs that have ended: lost, and repeated ones."""
        trained: dict[int, Counter[int]] = {}
        for process in self.records:
            for _, (epoch, item) in process.of("step"):
                trained.setdefault(epoch, Counter())[item] += 1
        ended = {e for p in self.records for _, (e, *_) in p.of("consensus")}
        counts = [trained.get(epoch, Counter()) for epoch in sorted(ended)]
        return {
            "epochs": len(counts),
            "dealt": self.items * len(counts),
            "trained": sum(len(each) for each in counts),
            "lost": sum(self.items - len(each) for each in counts),
            "repeated": sum(each.total() - len(each) for each in counts),
        }

    def final_loss(self) -> float:
        """Return the loss of the last consensus model."""
        losses = [e for p in self.records for e in p.of("consensus")]
        _, (_, loss, _) = max(losses, key=lambda event: (event[1][0], event[0]))
        return float(loss)


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def broken(notes: Notes) -> list[str]:
    """Return which invariants were broken, in words."""
    said = [
        f"learner {p.rank}.{p.incarnation}: {text}"
        for p in notes.records
        for _, (text,) in p.of("broken")
    ]
    return [*said, *_unequal_consensus(notes), *_backward(notes), *_halves(notes)]


def _unequal_consensus(notes: Notes) -> list[str]:
    """All learners have the same consensus model at the end of an epoch."""
    losses: dict[int, set[float]] = {}
    for process in notes.records:
        for _, (epoch, loss, _) in process.of("consensus"):
            losses.setdefault(epoch, set()).add(loss)
    return [
        f"epoch {epoch} has ended with consensus models of losses {sorted(each)}"
        for epoch, each in losses.items()
        if len(each) > 1
    ]


def _backward(notes: Notes) -> list[str]:
    """The epochs of a learner follow each other, over its restarts, too."""
    found = []
    for rank in range(notes.size):
        for process in (p for p in notes.records if p.rank == rank):
            epochs = [epoch for _, (epoch,) in process.of("epoch")]
            if any(b != a + 1 for a, b in pairwise(epochs)):
                found.append(f"learner {rank} has trained in epochs {epochs}")
    return found


def _halves(notes: Notes) -> list[str]:
    """An exchange is applied at both ends or at none.

    A process that is killed may have applied one without having noted it, and so
    may one of its partners. No pair of processes that ended otherwise differs.
    """
    dead = {(e["rank"], e["incarnation"]) for e in notes.done if e["event"] == "death"}
    clean: dict[int, list[Process]] = {}
    for process in notes.records:
        clean.setdefault(process.rank, []).append(process)
    found = []
    for one in range(notes.size):
        for other in range(one + 1, notes.size):
            ends = [
                sum(
                    peer == b
                    for p in clean.get(a, [])
                    for _, (peer,) in p.of("exchange")
                )
                for a, b in ((one, other), (other, one))
            ]
            killed = sum(rank in (one, other) for rank, _ in dead)
            if abs(ends[0] - ends[1]) > killed:
                found.append(
                    f"learners {one} and {other} have applied {ends[0]} and "
                    f"{ends[1]} exchanges with each other"
                )
    return found


WATCHED = 15.0
"""Seconds for which the others are watched after a fault."""


@dataclass(frozen=True)
class Wound:
    """What a death or a stop has done to the others.

    Attributes:
        kind: what was done.
        rank: the learner.
        seconds: until a survivor on one side of the learner first exchanged with one on
            the other; None if none has within `WATCHED` seconds, as at the ends of a
            ring: they have the same colour when one of them is lost, and do not meet.
        pause: the longest time between two steps of a survivor that reaches into the
            time until the next fault.
        away: until the learner's replacement made its first step, or it went on; None
            if it was killed before.
    """

    kind: str
    rank: int
    seconds: float | None
    pause: float
    away: float | None


def wounds(notes: Notes) -> list[Wound]:
    """Return what each fault that hit a training learner has done."""
    faults, found = notes.faults, []
    for number, fault in enumerate(faults):
        begin = fault["time"]
        later = [e["time"] for e in faults[number + 1 :] if e["time"] > begin + 1]
        if fault["stepped"]:
            found.append(_wound(notes, fault, min([*later, begin + WATCHED])))
    return found


def _wound(notes: Notes, fault: dict[str, Any], until: float) -> Wound:
    begin, rank = fault["time"], fault["rank"]
    survivors = [
        each
        for each in notes.records
        if each.rank != rank and any(a < begin < b for a, b in notes.lives(each))
    ]
    crossing = [
        when
        for each in survivors
        for when, (peer,) in each.of("exchange")
        if begin < when < begin + WATCHED
        and _crosses(each.rank, peer, rank, notes.size)
    ]
    healed = min(crossing) - begin if crossing else None
    pauses = [
        longest_pause(_alive(notes, each, begin), begin, until) for each in survivors
    ]
    return Wound(
        fault["kind"], rank, healed, max(pauses, default=0.0), _away(notes, fault)
    )


def _alive(notes: Notes, process: Process, begin: float) -> list[float]:
    """Return the steps of a process in the stretch in which it lived at a time."""
    ((first, last),) = [s for s in notes.lives(process) if s[0] < begin < s[1]]
    return [when for when, _ in process.of("step") if first <= when <= last]


def _crosses(one: int, other: int, rank: int, size: int) -> bool:
    """Return whether an edge of the ring leads over the place of a learner."""
    there = (other - one) % size
    way = (rank - one) % size
    short = there <= size / 2
    return way < there if short else way > there


def _away(notes: Notes, fault: dict[str, Any]) -> float | None:
    firsts = [
        each.first_step
        for each in notes.records
        if each.rank == fault["rank"]
        and each.incarnation == fault["incarnation"] + 1
        and each.first_step is not None
    ]
    return firsts[0] - fault["time"] if firsts else None


def longest_pause(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest pause between two steps that reaches into a stretch."""
    pauses = [b - a for a, b in pairwise(times) if b > begin and a < end]
    return max(pauses, default=0.0)


def summary(notes: Notes) -> dict[str, Any]:
    """Return the figures of a run with calm stretches and stretches of faults."""
    calm, torment = notes.spans("calm"), notes.spans("torment")
    quiet = [notes.speed([span]) for span in calm]
    rounds = [notes.speed([span]) for span in torment]
    capacity = _rate(quiet)
    fastest = max((_rate([one]) for one in quiet), default=math.nan)
    batches = sum(count for count, _ in rounds)
    living = sum(seconds for _, seconds in rounds)
    wall = sum(b - a for a, b in torment)
    found = wounds(notes)
    return {
        "capacity": capacity,
        "calm_stretches": [_rate([one]) for one in quiet],
        "rounds": [_rate([one]) / capacity for one in rounds],
        "calm_pause": _calm_pause(notes, calm),
        "seconds": wall,
        "hangs": [e["error"] for e in notes.done if e.get("error")],
        "status": next((e["status"] for e in notes.done if e["event"] == "end"), None),
        "living": living,
        "goodput": batches / (capacity * living),
        "goodput_least": batches / (fastest * living),
        "goodput_of_places": batches / (capacity * wall * notes.size),
        "faults": Counter(e["kind"] for e in notes.faults),
        "heal": _quantiles([w.seconds for w in found]),
        "unhealed": sum(w.seconds is None for w in found),
        "pause": _quantiles([w.pause for w in found]),
        "away": _quantiles([w.away for w in found]),
        "processes": sum(1 for _ in notes.records),
        "batches": notes.batches(),
        "final_loss": notes.final_loss(),
        "broken": broken(notes),
        "errors": _errors(notes),
        "wounds": [vars(w) for w in found],
    }


def _rate(speeds: Sequence[tuple[int, float]]) -> float:
    """Return batches over learner-seconds, summed over stretches; NaN if none lived."""
    seconds = sum(each for _, each in speeds)
    return sum(count for count, _ in speeds) / seconds if seconds else math.nan


def _errors(notes: Notes) -> list[str]:
    return [
        f"{p.rank}.{p.incarnation}: {text}"
        for p in notes.records
        for _, (text,) in p.of("error")
    ]


def _calm_pause(notes: Notes, calm: Sequence[Span]) -> float:
    return max(
        (
            longest_pause([when for when, _ in p.of("step")], *span)
            for p in notes.records
            for span in calm
        ),
        default=0.0,
    )


def _quantiles(values: Sequence[float | None]) -> dict[str, float]:
    known = sorted(value for value in values if value is not None)
    if not known:
        return {}
    high = known[min(len(known) - 1, math.ceil(0.95 * len(known)) - 1)]
    return {"median": median(known), "p95": high, "max": known[-1]}


Row = dict[str, Any]

_HEAD = (
    "case",
    "learners",
    "faults",
    "goodput of the living (by the fastest calm stretch)",
    "of all places",
    "heals in s",
    "longest pause in s",
    "away in s",
    "batches lost / repeated / dealt",
    "hangs",
    "invariants broken",
    "final loss",
)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of all tables; each row has its `case` and its `figures`."""
    tormented = [row for row in rows if "goodput" in row["figures"]]
    lines = []
    if tormented:
        lines += [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
        lines += [_line(row) for row in tormented]
    undisturbed = [row for row in rows if row["case"] == "undisturbed"]
    if undisturbed:
        losses = [row["figures"]["final_loss"] for row in undisturbed]
        epochs = sorted({row["figures"]["epochs"] for row in undisturbed})
        lines += ["", *_undisturbed(losses, epochs)]
    return lines


def measured_on(rows: Sequence[Row]) -> str:
    """Return the commits that were measured, as a sentence."""
    commits: dict[str, list[str]] = {}
    for row in rows:
        cases = commits.setdefault(str(row["machine"]["commit"]), [])
        cases += [row["case"]] * (row["case"] not in cases)
    each = "; ".join(
        f"{', '.join(cases)}: {commit}" for commit, cases in commits.items()
    )
    return f"Measured commits: {each}."


def _line(row: Row) -> str:
    found = row["figures"]
    batches = found["batches"]
    cells = [
        row["case"],
        str(row["learners"]),
        ", ".join(f"{n} x {kind}" for kind, n in found["faults"].items()),
        f"{found['goodput']:.3f} ({found['goodput_least']:.3f})",
        f"{found['goodput_of_places']:.3f}",
        _shown(found["heal"]),
        _shown(found["pause"]),
        _shown(found["away"]),
        f"{batches['lost']} / {batches['repeated']} / {batches['dealt']}",
        str(len(found["hangs"])),
        str(len(found["broken"])),
        f"{found['final_loss']:.5f} ({batches['epochs']} epochs)",
    ]
    return f"| {' | '.join(cells)} |"


def _shown(found: dict[str, float]) -> str:
    if not found:
        return ""
    return f"{found['median']:.2f}, {found['p95']:.2f}, {found['max']:.2f}"


def _undisturbed(losses: Sequence[float], epochs: Sequence[int]) -> list[str]:
    each = ", ".join(f"{loss:.5f}" for loss in losses)
    return [
        f"Undisturbed trainings with {len(losses)} other seeds end at the losses "
        f"{each} (mean {mean(losses):.5f}) after {epochs[0]} epochs."
    ]
