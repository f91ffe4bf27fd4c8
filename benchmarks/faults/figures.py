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

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from faults.invariants import broken
from faults.notes import Notes, Span
from faults.wounds import longest_pause, wounds


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
