"""The protocols by which learners agree: who lives, who has met, when gossip is over.

They are rules about keys and values in a store that all learners share. Processes run
them over the rendezvous store. Virtual learners run the first two over one in memory,
so what a simulated schedule of faults finds there, it finds for processes.

*Members.* One key has the version, the living learners, each with its incarnation, and
the number of the last epoch whose gossip is over: "3:0.0,1.0,3.1:5". A learner that is
started again has a higher incarnation than the one before. The value is changed by
compare-and-set alone: by whoever notices a death first, by a replacement that joins,
and by whoever sees that the gossip of an epoch is over. So each value follows from one
other, and nobody joins an epoch whose gossip is over.

*Retirement.* An active learner that will invite nobody any more writes so. Whoever sees
that all living active ones have done so, on retiring or when the members change, writes
that the gossip of the epoch is over. Nobody counts, because a learner may die at any
moment, before or after it has retired.

*Meetings.* Every learner writes that it has arrived. Whoever sees that all living ones
have arrived decides who has met, by compare-and-set: the last one to arrive; or, when
the members change, any that waits. So all have the same list, although a learner may
die at any moment.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

from espnet_distopt.core.driver import SharedStore
from espnet_distopt.core.membership import Members

# Keys


def learner_name(rank: int, incarnation: int) -> str:
    """Return the name of a learner in keys and values: RANK.INCARNATION, as 3.1."""
    return f"{rank}.{incarnation}"


MEMBERS = "members"
"""The members and the last epoch whose gossip is over; every heartbeat reads it."""


def fate(learner: str) -> str:
    """Return the key of why a learner is no member any more; it is written before."""
    return f"fate/{learner}"


def retired(epoch: int, learner: str) -> str:
    """Return the key of a retirement; the learner deletes it two epochs later."""
    return f"retired/{epoch}/{learner}"


def gossip_over(epoch: int) -> str:
    """Return the key for which passive learners wait; it is there for two epochs."""
    return f"gossip-over/{epoch}"


def arrival(meeting: str, learner: str) -> str:
    """Return the key of an arrival; the learner deletes it two meetings later."""
    return f"meet/{meeting}/{learner}"


def met(meeting: str) -> str:
    """Return the key of who has met; their first deletes it two meetings later."""
    return f"met/{meeting}"


# Members


class Entry(NamedTuple):
    """The value of `MEMBERS`.

    Attributes:
        version: the number of changes of the living learners.
        living: the incarnation of each living rank.
        over: the number of the last epoch whose gossip is over; 0 before that of the
            first one is.
    """

    version: int
    living: dict[int, int]
    over: int


class Membership:
    """What one learner knows of the members.

    A replacement is no member until it joins: meanwhile it reads the members only.

    Args:
        store: the store of all learners.
        rank: this learner's rank.
        size: number of places, N.
        incarnation: how often a learner of this rank was started before.
        lock: what is held while the members are taken over, where several threads do
            so.

    Attributes:
        size: number of places, N.
        members: the living learners, as last read.
        joining: whether this learner is a replacement that has not joined yet.
        dead: rank -> incarnation of the others that live no more, as last read. It is
            replaced as a whole, so that no thread sees the death of one learner with
            the incarnation of its replacement.
    """

    def __init__(
        self,
        store: SharedStore,
        rank: int,
        size: int,
        incarnation: int = 0,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.size = size
        self._rank, self._own = rank, incarnation
        self._incarnations = dict.fromkeys(range(size), 0) | {rank: incarnation}
        self.members = Members.everybody(size)
        self.dead: Mapping[int, int] = {}
        self.joining = incarnation > 0
        self._text = ""
        self._present: int | None = None
        self._lock = nullcontext() if lock is None else lock
        first = _format(Entry(0, dict.fromkeys(range(size), 0), 0))
        self.read(store.compare_set(MEMBERS, "", first))

    def read(self, value: bytes) -> bool:
        """Take over a value of `MEMBERS`; return whether the members have changed."""
        text = bytes(value).decode()
        version, living, _ = _parse(text)
        others = {rank: n for rank, n in living.items() if rank != self._rank}
        with self._lock:
            if text == self._text or version < self.members.version:
                return False
            changed = version > self.members.version or not self._text
            self._present = living.get(self._rank)
            self._incarnations |= others
            self._note_dead(living)
            self.members = Members(version, tuple(living))
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

    def remove(self, store: SharedStore, lost: Iterable[int], why: str) -> None:
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
                store.compare_set(fate(self.name(rank)), "", why)
            desired = _format(Entry(entry.version + 1, left, entry.over))
            found = store.compare_set(MEMBERS, text, desired)
            self.read(found)
            text = bytes(found).decode()

    def join(self, store: SharedStore, epoch: int) -> bool:
        """Enter the members within an epoch; return False if its gossip is over.

        It replaces the learner of this rank that was there before. Cost: two operations
        of the store, or more if others change the members at the same time.
        """
        text = bytes(store.get(MEMBERS)).decode()
        while (entry := _parse(text)).over < epoch:
            living = dict(sorted({**entry.living, self._rank: self._own}.items()))
            desired = _format(Entry(entry.version + 1, living, entry.over))
            found = bytes(store.compare_set(MEMBERS, text, desired)).decode()
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
        """Return the name of the present learner of `rank` in keys (`learner_name`)."""
        return learner_name(rank, self.incarnation(rank))


def read_members(store: SharedStore) -> Entry:
    """Return the members that the store has now, which a learner may not know yet."""
    return _parse(bytes(store.get(MEMBERS)).decode())


def end_epoch(store: SharedStore, before: Entry, epoch: int) -> bool:
    """Let nobody join an epoch any more, whose gossip is over.

    Returns:
        Whether that is so; False if the members have changed meanwhile.
    """
    if before.over >= epoch:
        return True
    desired = _format(before._replace(over=epoch))
    found = store.compare_set(MEMBERS, _format(before), desired)
    return bytes(found).decode() == desired


# Retirement


def retire(
    store: SharedStore, epoch: int, learner: str, actives: Collection[int]
) -> bool:
    """Say that an active learner will invite nobody any more.

    Args:
        store: the store of all learners.
        epoch: the number of the gossip's epoch.
        learner: the learner's name.
        actives: the ranks that are active in this epoch, dead ones included.

    Returns:
        Whether all living active ones have said so: then the gossip is over.
    """
    store.set(retired(epoch, learner), "1")
    store.delete_key(retired(epoch - 2, learner))
    return end_gossip(store, epoch, actives)


def end_gossip(store: SharedStore, epoch: int, actives: Collection[int]) -> bool:
    """Write that an epoch's gossip is over if it is so; return whether it is.

    Args: as for `retire`.
    """
    if _end_if_all_have(store, epoch, actives, partial(retired, epoch)) is None:
        return False
    store.set(gossip_over(epoch), "1")
    store.delete_key(gossip_over(epoch - 2))
    return True


def _end_if_all_have(
    store: SharedStore,
    epoch: int,
    ranks: Collection[int] | None,
    key: Callable[[str], str],
) -> Members | None:
    """Return those of `ranks` that live, and let nobody join an epoch any more.

    None if one of them has not written `key` of its name. The store's members are newer
    than those that a learner knows. So of a death and of what another learner writes at
    the same time, whoever comes second sees the first. Nobody joins between this look
    and the end of the epoch.
    """
    while True:
        entry = read_members(store)
        living = {r: n for r, n in entry.living.items() if ranks is None or r in ranks}
        awaited = [key(learner_name(*each)) for each in living.items()]
        if awaited and not store.check(awaited):
            return None
        if end_epoch(store, entry, epoch):
            return Members(entry.version, tuple(living))


# Meetings


def decide_meeting(
    store: SharedStore, name: str, ranks: Collection[int] | None, closes: int
) -> None:
    """Write who has met, if all living ones have come and nobody has written it yet.

    Args:
        store: the store of all learners.
        name: the name of this meeting, which no other one has.
        ranks: the learners that meet; None means all.
        closes: the number of an epoch whose gossip has ended for all who come, so that
            nobody joins it once they have met.
    """
    # One that has joined is in the store before others know of it.
    living = _end_if_all_have(store, closes, ranks, partial(arrival, name))
    if living is not None:
        ranks_met = ",".join(map(str, living.ranks))
        store.compare_set(met(name), "", f"{living.version}:{ranks_met}")


def parse_met(value: bytes) -> Members:
    """Return those who have met, of the value of `met`."""
    version, _, ranks = bytes(value).decode().partition(":")
    return Members(int(version), tuple(map(int, ranks.split(","))))


# The value of `MEMBERS`


def _format(entry: Entry) -> str:
    living = ",".join(learner_name(*each) for each in entry.living.items())
    return f"{entry.version}:{living}:{entry.over}"


def _parse(text: str) -> Entry:
    version, living, over = text.split(":")
    pairs = (each.split(".") for each in living.split(",") if each)
    return Entry(
        int(version), {int(rank): int(number) for rank, number in pairs}, int(over)
    )
