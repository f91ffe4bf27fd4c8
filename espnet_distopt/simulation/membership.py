"""The members of a simulated run: faults strike, and the others come to know of them.

Members change by the protocol that processes run (`core.protocols`), in a store in
memory. An observer, who knows at once what the store has, removes who is lost.

A crash is noticed by a closed connection, as soon as a message would arrive. A silence
is noticed after `silence` seconds: the learner is excluded. If it returns later, it
finds its place taken and ends. Each living learner hears of a change in its own time.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.driver import SharedStore
from espnet_distopt.core.membership import Members
from espnet_distopt.core.protocols import MEMBERS, Membership
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.faults import Fault, Outages
from espnet_distopt.simulation.network import Network


class Host(Protocol):
    """What a change of the members concerns."""

    def exclude(self, ranks: Sequence[int]) -> None:
        """Go on without `ranks`, which are not members any more."""

    def learn(self, rank: int, members: bytes) -> None:
        """Let a learner read members that the store had."""

    def returned(self, acts: Iterable[Callable[[], None]]) -> None:
        """Let a learner do what has waited for the end of its silence."""

    def join(self, rank: int) -> None:
        """Let a replacement of `rank` join."""


class VirtualMembers:
    """The members, the outages, and an agenda of what will happen to them.

    Attributes:
        store: what all learners share.
        learners: for each rank, what the last learner of it knows of the members; empty
            if the run does not survive, so that they never change.
        outages: the learners that do nothing now.
        survives: whether the run goes on without a learner that is lost.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        faults: Iterable[Fault],
        silence: float,
        size: int,
        lost_with: Callable[[int], tuple[int, ...]],
        host: Host,
        survives: bool,
    ) -> None:
        self.store: SharedStore = HashStore()
        ranks = range(size if survives else 0)
        self.learners = [Membership(self.store, rank, size) for rank in ranks]
        self._size = size
        self.outages = Outages()
        self.survives = survives
        self._observer = Membership(self.store, size, size)
        self._changes = 0
        self._clock = clock
        self._network = network
        self._silence = silence
        self._lost_with = lost_with
        self._host = host
        self._agenda = Clock()
        self._crashed: set[int] = set()
        for fault in sorted(faults, key=lambda fault: fault.at):
            self._agenda.at(round(fault.at * 1e9), partial(self._strike, fault))

    @property
    def now(self) -> Members:
        """The members that a learner would find in the store."""
        return self._observer.members

    def incarnation(self, rank: int) -> int:
        """Return how often a replacement of a learner of `rank` has joined."""
        return self._observer.incarnation(rank)

    def due(self, upcoming: int | None, running: Callable[[], bool]) -> bool:
        """Let the next thing happen if it comes first; return whether it did.

        Args:
            upcoming: the time of the clock's next event; None if there is none.
            running: a function that returns whether a learner still runs or waits. If
                none does, and there is no event, what is left happens in a later epoch.
        """
        when = self._agenda.next()
        if when is None or (upcoming is None and not running()):
            return False
        if upcoming is not None and upcoming < when:
            return False
        self._clock.now = max(self._clock.now, when)
        return self._agenda.tick()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._agenda.at(self._clock.later(seconds), act)

    def _strike(self, fault: Fault) -> None:
        rank = fault.rank
        if fault.kind == "join":
            self._later(self._delay(rank, rank), partial(self._host.join, rank))
        elif rank in self.now.ranks and rank not in self._crashed:
            incarnation = self.incarnation(rank)
            lost = partial(self._exclude, rank, incarnation)
            for_good = fault.seconds >= self._silence
            if fault.kind == "crash" or (for_good and not self.survives):
                self._crashed.add(rank)
                self._later(self._delay(rank, rank + 1), lost)
            elif not self.outages.down(rank):
                if for_good:
                    self._later(self._silence, lost)
                self._later(fault.seconds, partial(self._return, rank, incarnation))
            self.outages.begin(rank)

    def _delay(self, sender: int, receiver: int) -> float:
        """Return how long news take; no message of the learners' has this number."""
        number = -1 - self._changes
        receiver %= self._size
        return self._network.message(sender, receiver, number, 0).latency

    def _exclude(self, rank: int, incarnation: int) -> None:
        """Exclude a learner that is lost, and all that leave with it."""
        same = self.incarnation(rank) == incarnation
        if not self.survives or not same or rank not in self.now.ranks:
            return
        if not self.outages.down(rank):
            return
        ranks = self._lost_with(rank)
        self._observer.remove(self.store, ranks, f"learner {rank} is lost")
        self._host.exclude(ranks)
        self._tell(rank)

    def _return(self, rank: int, incarnation: int) -> None:
        """End a silence; a learner that was excluded meanwhile does nothing more."""
        same = self.incarnation(rank) == incarnation
        if same and rank not in self._crashed:
            acts = self.outages.end(rank)
            if rank in self.now.ranks:
                self._host.returned(acts)

    def admit(self, ranks: Sequence[int], epoch: int) -> bool:
        """Make replacements of `ranks` members, and tell the others in time.

        Returns False if the gossip of the epoch is over, so that nobody can join it.
        """
        for rank in ranks:
            number = self.incarnation(rank) + 1
            new = Membership(self.store, rank, self._size, number)
            if not new.join(self.store, epoch):
                return False
            self.learners[rank] = new
            self.outages.end(rank)
            self._crashed.discard(rank)
        self._observer.read(self.store.get(MEMBERS))
        self.tell_now(ranks)
        self._tell(ranks[0])
        return True

    def tell_now(self, ranks: Iterable[int]) -> None:
        """Let learners read the members that the store has."""
        for rank in ranks:
            self.learners[rank].read(self.store.get(MEMBERS))

    def join_later(self, rank: int) -> None:
        """Let a replacement of `rank` ask again: all members are silent now."""
        self._later(self._silence, partial(self._host.join, rank))

    def _tell(self, about: int) -> None:
        self._changes += 1
        for rank in self.now.ranks:
            news = partial(self._host.learn, rank, self.store.get(MEMBERS))
            self._later(self._delay(about, rank), news)
