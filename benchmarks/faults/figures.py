"""Goodput, time to heal, and lost batches of a tormented run, from its notes.

Capacity is measured in calm stretches of the same run: c, the batches that a learner
trains in a second. Goodput is

    batches trained by all / (c x learner-seconds that lived)

within the stretches with faults. A learner lives from its first step to its death or
its end. So one that is being restarted is no capacity from its death to its first step,
and a batch that has made the first step is not counted, as its seconds are not. One
that is stopped is no capacity until it goes on, or is replaced. Both stretches include
the ends of epochs, where the learners wait for each other.

`of all places` is the same with all learners as capacity all the time, dead or not.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from faults.records import Process, Records

Span = tuple[float, float]
"""The begin and the end of a stretch, in seconds."""


@dataclass(frozen=True)
class Wound:
    """What a death or a stop has done to the others.

    Attributes:
        kind: what was done.
        rank: the learner.
        seconds: until a survivor on one side of the learner first exchanged with one on
            the other; None if none has before the next fault.
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


class Notes:
    """The notes of a run, and what was done to it.

    Args:
        directory: the folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.records = Records(directory)
        self.records.read()
        lines = (directory / "faults.jsonl").read_text().splitlines()
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
        return [e for e in self.done if e["event"] in ("death", "stop")]

    # Goodput

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

    # Healing

    def wounds(self) -> list[Wound]:
        """Return what each fault that hit a training learner has done."""
        faults, found = self.faults, []
        for number, fault in enumerate(faults):
            later = [e["time"] for e in faults[number + 1 :] if e["time"] > fault["time"]]
            until = min([*later, fault["time"] + 60.0])
            if fault["stepped"]:
                found.append(self._wound(fault, until))
        return found

    def _wound(self, fault: dict[str, Any], until: float) -> Wound:
        begin, rank = fault["time"], fault["rank"]
        survivors = [
            each
            for each in self.records
            if each.rank != rank and any(a < begin < b for a, b in self.lives(each))
        ]
        crossing = [
            when
            for each in survivors
            for when, (peer,) in each.of("exchange")
            if begin < when < until and self._crosses(each.rank, peer, rank)
        ]
        healed = min(crossing) - begin if crossing else None
        pauses = [
            _longest_pause([when for when, _ in each.of("step")], begin, until)
            for each in survivors
        ]
        return Wound(
            fault["kind"], rank, healed, max(pauses, default=0.0), self._away(fault)
        )

    def _crosses(self, one: int, other: int, rank: int) -> bool:
        """Return whether an edge of the ring leads over the place of a learner."""
        there = (other - one) % self.size
        way = (rank - one) % self.size
        short = there <= self.size / 2
        return way < there if short else way > there

    def _away(self, fault: dict[str, Any]) -> float | None:
        firsts = [
            each.first_step
            for each in self.records
            if each.rank == fault["rank"]
            and each.incarnation == fault["incarnation"] + 1
            and each.first_step is not None
        ]
        return firsts[0] - fault["time"] if firsts else None

    # Data

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

    # Invariants

    def broken(self) -> list[str]:
        """Return which invariants were broken, in words."""
        said = [
            f"learner {p.rank}.{p.incarnation}: {text}"
            for p in self.records
            for _, (text,) in p.of("broken")
        ]
        return [*said, *self._unequal_consensus(), *self._backward(), *self._halves()]

    def _unequal_consensus(self) -> list[str]:
        """All learners have the same consensus model at the end of an epoch."""
        losses: dict[int, set[float]] = {}
        for process in self.records:
            for _, (epoch, loss, _) in process.of("consensus"):
                losses.setdefault(epoch, set()).add(loss)
        return [
            f"epoch {epoch} has ended with consensus models of losses {sorted(each)}"
            for epoch, each in losses.items()
            if len(each) > 1
        ]

    def _backward(self) -> list[str]:
        """The epochs of a learner follow each other, over its restarts, too."""
        found = []
        for rank in range(self.size):
            for process in (p for p in self.records if p.rank == rank):
                epochs = [epoch for _, (epoch,) in process.of("epoch")]
                if any(b != a + 1 for a, b in pairwise(epochs)):
                    found.append(f"learner {rank} has trained in epochs {epochs}")
        return found

    def _halves(self) -> list[str]:
        """An exchange is applied at both ends or at none.

        A process that is killed may have applied one without having noted it, and so
        may one of its partners. No pair of processes that ended otherwise differs.
        """
        dead = {
            (e["rank"], e["incarnation"]) for e in self.done if e["event"] == "death"
        }
        clean: dict[int, list[Process]] = {}
        for process in self.records:
            clean.setdefault(process.rank, []).append(process)
        found = []
        for one in range(self.size):
            for other in range(one + 1, self.size):
                ends = [
                    sum(peer == b for p in clean.get(a, []) for _, (peer,) in p.of("exchange"))
                    for a, b in ((one, other), (other, one))
                ]
                killed = sum(rank in (one, other) for rank, _ in dead)
                if abs(ends[0] - ends[1]) > killed:
                    found.append(
                        f"learners {one} and {other} have applied {ends[0]} and "
                        f"{ends[1]} exchanges with each other"
                    )
        return found


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _longest_pause(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest pause between two steps that reaches into a stretch."""
    pauses = [b - a for a, b in pairwise(times) if b > begin and a < end]
    return max(pauses, default=0.0)


def summary(notes: Notes) -> dict[str, Any]:
    """Return the figures of a run with calm stretches and stretches of faults."""
    calm, torment = notes.spans("calm"), notes.spans("torment")
    calm_batches, calm_seconds = notes.speed(calm)
    batches, seconds = notes.speed(torment)
    rate = calm_batches / calm_seconds
    wounds = notes.wounds()
    wall = sum(b - a for a, b in torment)
    return {
        "capacity": rate,
        "calm_stretches": [b / s for b, s in (notes.speed([span]) for span in calm)],
        "calm_pause": _calm_pause(notes, calm),
        "seconds": wall,
        "living": seconds,
        "goodput": batches / (rate * seconds),
        "goodput_of_places": batches / (rate * wall * notes.size),
        "faults": Counter(e["kind"] for e in notes.faults),
        "heal": _quantiles([w.seconds for w in wounds]),
        "unhealed": sum(w.seconds is None for w in wounds),
        "pause": _quantiles([w.pause for w in wounds]),
        "away": _quantiles([w.away for w in wounds]),
        "processes": sum(1 for _ in notes.records),
        "batches": notes.batches(),
        "final_loss": notes.final_loss(),
        "broken": notes.broken(),
        "errors": _errors(notes),
        "wounds": [vars(w) for w in wounds],
    }


def _errors(notes: Notes) -> list[str]:
    return [
        f"{p.rank}.{p.incarnation}: {text}"
        for p in notes.records
        for _, (text,) in p.of("error")
    ]


def _calm_pause(notes: Notes, calm: Sequence[Span]) -> float:
    return max(
        (
            _longest_pause([when for when, _ in p.of("step")], *span)
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
