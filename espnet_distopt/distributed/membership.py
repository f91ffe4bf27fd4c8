"""The members of a run as the rendezvous store has them, in numbered versions.

The store has one key, whose value is the version, the living learners, each with its
incarnation, and the number of the last epoch whose gossip is over: "3:0.0,1.0,3.1:5". A
learner that is started again has a higher incarnation than the one before. The value is
changed by compare-and-set alone: by whoever notices a death first, by a replacement
that joins, and by whoever sees that the gossip of an epoch is over. So each value
follows from one other, and nobody joins an epoch whose gossip is over.
"""

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import keys


class Entry(NamedTuple):
    """The value of the key.

    Attributes:
        version: the number of changes of the living learners.
        living: the incarnation of each living rank.
        over: the number of the last epoch whose gossip is over; 0 before that of the
            first one is.
    """

    version: int
    living: dict[int, int]
    over: int

    @property
    def members(self) -> Members:
        """The living learners."""
        return Members(self.version, tuple(self.living))


class Membership:
    """What this process knows of the members.

    A replacement is no member until it joins: meanwhile it reads the members only.

    Args:
        store: the store of all learners.
        rank: this learner's rank.
        size: number of places, N.
        incarnation: how often a learner of this rank was started before.

    Attributes:
        size: number of places, N.
        members: the living learners, as last read.
        joining: whether this learner is a replacement that has not joined yet.
        dead: rank -> incarnation of the others that live no more, as last read. It is
            replaced as a whole, so that no thread sees the death of one learner with
            the incarnation of its replacement.
    """

    def __init__(self, store: Any, rank: int, size: int, incarnation: int = 0) -> None:
        self.size = size
        self._rank, self._own = rank, incarnation
        self._incarnations = dict.fromkeys(range(size), 0) | {rank: incarnation}
        self.members = Members.everybody(size)
        self.dead: Mapping[int, int] = {}
        self.joining = incarnation > 0
        self._text = ""
        self._present: int | None = None
        self._lock = threading.Lock()  # Of the training's and the heartbeat's thread.
        first = _format(Entry(0, dict.fromkeys(range(size), 0), 0))
        self.read(store.compare_set(keys.MEMBERS, "", first))

    def read(self, value: bytes) -> bool:
        """Take over the store's value; return whether the members have changed."""
        with self._lock:
            return self._read(value)

    def _read(self, value: bytes) -> bool:
        text = bytes(value).decode()
        entry = _parse(text)
        if text == self._text or entry.version < self.members.version:
            return False
        changed = entry.version > self.members.version or not self._text
        self._present = entry.living.get(self._rank)
        self._incarnations |= {r: n for r, n in entry.living.items() if r != self._rank}
        self._note_dead(entry.living)
        self.members = entry.members
        self._text = text
        return changed

    def _note_dead(self, living: Collection[int]) -> None:
        others = self.incarnations.items()
        self.dead = {r: n for r, n in others if r != self._rank and r not in living}

    @property
    def incarnations(self) -> dict[int, int]:
        """The greatest known incarnation of each rank, dead or alive."""
        return dict(self._incarnations)

    def learn(self, incarnations: Mapping[int, int]) -> None:
        """Take over what a member knows of those who have died.

        The store's value says nothing of them, and several learners of one rank may
        have died, one after another, before a replacement of another rank begins.
        """
        with self._lock:
            for rank, number in incarnations.items():
                if rank != self._rank:
                    known = self._incarnations[rank]
                    self._incarnations[rank] = max(known, number)
            self._note_dead(self.members.ranks)

    def remove(self, store: Any, lost: Iterable[int], why: str) -> None:
        """Remove learners from the members in the store, and write why.

        A learner that has replaced one of them meanwhile stays. Cost: one operation of
        the store, or more if others change the members at the same time, and one for
        each of `lost`.
        """
        known = {rank: self._incarnations[rank] for rank in lost}
        text = self._text
        while True:
            entry = _parse(text)
            left = {r: n for r, n in entry.living.items() if known.get(r) != n}
            gone = entry.living.keys() - left.keys()
            if not gone:
                return
            for rank in gone:
                store.compare_set(keys.fate(self.name(rank)), "", why)
            desired = _format(Entry(entry.version + 1, left, entry.over))
            found = store.compare_set(keys.MEMBERS, text, desired)
            self.read(found)
            text = bytes(found).decode()

    def join(self, store: Any, epoch: int) -> bool:
        """Enter the members within an epoch; return False if its gossip is over.

        It replaces the learner of this rank that was there before. Cost: two operations
        of the store, or more if others change the members at the same time.
        """
        text = bytes(store.get(keys.MEMBERS)).decode()
        while (entry := _parse(text)).over < epoch:
            living = dict(sorted({**entry.living, self._rank: self._own}.items()))
            desired = _format(Entry(entry.version + 1, living, entry.over))
            found = bytes(store.compare_set(keys.MEMBERS, text, desired)).decode()
            if found == desired:
                self.read(found.encode())
                self.joining = False
                return True
            text = found
        return False

    @property
    def excluded(self) -> bool:
        """Whether the others have given this learner up, or have replaced it."""
        return not self.joining and self._present != self._own

    def incarnation(self, rank: int) -> int:
        """Return how often a learner of `rank` was started before; -1 if never."""
        return self._incarnations.get(rank, -1)

    def name(self, rank: int) -> str:
        """Return the name of the present learner of `rank` in keys (`keys.learner`)."""
        return keys.learner(rank, self.incarnation(rank))


def read_members(store: Any) -> Entry:
    """Return the members that the store has now, which this process may not know."""
    return _parse(bytes(store.get(keys.MEMBERS)).decode())


def end_epoch(store: Any, before: Entry, epoch: int) -> bool:
    """Let nobody join an epoch any more, whose gossip is over.

    Args:
        store: the store of all learners.
        before: the members of whom the gossip is over.
        epoch: the number of the epoch.

    Returns:
        Whether that is so; False if the members have changed meanwhile.
    """
    if before.over >= epoch:
        return True
    desired = _format(before._replace(over=epoch))
    found: bytes = store.compare_set(keys.MEMBERS, _format(before), desired)
    return bytes(found).decode() == desired


def _format(entry: Entry) -> str:
    living = ",".join(keys.learner(*each) for each in entry.living.items())
    return f"{entry.version}:{living}:{entry.over}"


def _parse(text: str) -> Entry:
    version, living, over = text.split(":")
    pairs = (each.split(".") for each in living.split(",") if each)
    return Entry(
        int(version), {int(rank): int(number) for rank, number in pairs}, int(over)
    )
