"""The module computes the figures of a run in which a learner was lost."""

from statistics import median
from typing import Any

from survival.run import Outcome

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
    longest: the longest step of each other learner, from when the replacement is
        reachable until its first exchange, in median steps of that learner before.
    """
    settings, events = outcome.settings, outcome.events
    new = f"{settings.victim}.1"
    [reachable] = events.of(new, "reachable")
    at = {
        what: min((e["at"] for e in events.of(new, what)), default=float("inf"))
        for what in ("session", "exchange", "step")
    }
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
        "usual": median(seconds),
        "longest": longest,
    }
