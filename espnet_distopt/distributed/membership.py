"""The members of a run as the rendezvous store has them, in numbered versions.

The store has one key, whose value is the version and the living learners, each with its
incarnation: "3:0.0,1.0,3.1". A learner that is started again has a higher incarnation
than the one before. The value is changed by compare-and-set alone, by whoever notices a
death first, so that each version follows from one other.
"""

from collections.abc import Iterable
from typing import Any

from espnet_distopt.core.membership import Members

KEY = "members"
"""The key of the members in the store."""


class Membership:
    """What this process knows of the members.

    Args:
        store: the store of all learners.
        rank: this learner's rank.
        size: number of places, N.
        incarnation: how often a learner of this rank was started before.

    Attributes:
        members: the living learners, as last read.
    """

    def __init__(self, store: Any, rank: int, size: int, incarnation: int = 0) -> None:
        self._rank, self._own = rank, incarnation
        self._incarnations = dict.fromkeys(range(size), 0) | {rank: incarnation}
        self.members = Members.everybody(size)
        self._text = ""
        self._present: int | None = None
        first = f"0:{','.join(f'{each}.0' for each in range(size))}"
        self.read(store.compare_set(KEY, "", first))

    def _format(self, members: Members) -> str:
        living = (f"{rank}.{self._incarnations[rank]}" for rank in members.ranks)
        return f"{members.version}:{','.join(living)}"

    def read(self, value: bytes) -> bool:
        """Take over the store's value; return whether the members have changed."""
        text = bytes(value).decode()
        version, living = _parse(text)
        if text == self._text or version < self.members.version:
            return False
        self._present = living.get(self._rank)
        self._incarnations |= {r: n for r, n in living.items() if r != self._rank}
        self.members = Members(version, tuple(living))
        self._text = text
        return True

    def remove(self, store: Any, lost: Iterable[int], why: str) -> None:
        """Remove learners from the members in the store, and write why.

        Cost: one operation of the store, or more if others change the members at the
        same time, and one for each of `lost`.
        """
        lost = set(lost)
        while gone := lost & set(self.members.ranks):
            for rank in gone:
                store.compare_set(self.fate_key(rank), "", why)
            desired = self._format(self.members.without(gone))
            self.read(store.compare_set(KEY, self._text, desired))

    @property
    def excluded(self) -> bool:
        """Whether the others have given this learner up, or have replaced it."""
        return self._present != self._own

    def incarnation(self, rank: int) -> int:
        """Return how often a learner of `rank` was started before; -1 if never."""
        return self._incarnations.get(rank, -1)

    def fate_key(self, rank: int) -> str:
        """Return the key that says why a learner is no member any more."""
        return f"fate/{rank}.{self._incarnations[rank]}"

    def address_key(self, rank: int) -> str:
        """Return the key of the address at which a learner listens."""
        return f"address/{rank}.{self._incarnations[rank]}"


def living_in(store: Any) -> tuple[int, ...]:
    """Return the living ranks that the store has now, which this process may not."""
    return tuple(_parse(store.get(KEY).decode())[1])


def _parse(text: str) -> tuple[int, dict[int, int]]:
    """Return the version, and the incarnation of each living rank, in their order."""
    version, _, living = text.partition(":")
    pairs = (entry.split(".") for entry in living.split(",") if entry)
    return int(version), {int(rank): int(number) for rank, number in pairs}
