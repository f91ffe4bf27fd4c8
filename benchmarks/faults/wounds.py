"""What each fault of a tormented run has done to the learners that lived on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from faults.notes import Notes
from faults.records import Process

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
