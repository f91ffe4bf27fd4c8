"""Which invariants of gossip training a tormented run has broken."""

from itertools import pairwise

from faults.notes import Notes
from faults.records import Process


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
