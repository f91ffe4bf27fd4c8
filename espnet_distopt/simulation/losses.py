"""The end of a run whose algorithm does not survive the loss of a learner."""

from collections.abc import Iterable, Sequence
from typing import Any

from espnet_distopt.core.effects import (
    AwaitInvitation,
    Barrier,
    Begin,
    Exchange,
    GroupCollective,
    Invite,
    NeighbourAllGather,
    Wait,
)
from espnet_distopt.errors import PeerLostError
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.sides import Side


class Losses:
    """The learners that are lost, and the waits for them.

    An exchange or a collective with a lost learner never completes. As in the
    process-group driver, a learner that waits for one that has been silent for too long
    ends the run.

    Args:
        clock: the simulation's clock.
        size: the number of learners.
        faults: what happens. A silence of `silence` seconds or more counts as a crash:
            nobody waits for the return.
        silence: the seconds after which a wait for a lost learner ends the run.
    """

    def __init__(
        self, clock: Clock, size: int, faults: Iterable[Fault], silence: float
    ) -> None:
        self._clock = clock
        self._everybody = tuple(range(size))
        self._silence = round(silence * 1e9)
        self._at: dict[int, int] = {}
        self._how: dict[int, str] = {}
        for fault in sorted(faults, key=lambda fault: fault.at):
            if fault.kind == "crash" or fault.seconds >= silence:
                self._at.setdefault(fault.rank, round(fault.at * 1e9))
                how = "crashed" if fault.kind == "crash" else "fell silent"
                self._how.setdefault(fault.rank, how)

    def __bool__(self) -> bool:
        return bool(self._at)

    def has(self, rank: int) -> bool:
        """Return whether `rank` is lost by now."""
        return rank in self._at and self._at[rank] <= self._clock.now

    def hit(self, effect: Any) -> bool:
        """Return whether `effect` needs a learner that is lost."""
        return bool(self._at) and any(map(self.has, self._needs(effect)))

    def _needs(self, effect: Any) -> Sequence[int]:
        match effect:
            case Exchange(peer) | Invite(peer):
                return (peer,)
            case AwaitInvitation(peers) | NeighbourAllGather(_, peers):
                return peers
            case GroupCollective():
                return effect.ranks or self._everybody
            case Begin(collective):
                return self._needs(collective)
            case Wait(handle):
                return self._needs(handle.collective)
            case Barrier():
                return self._everybody
        return ()

    def notice(self, running: Sequence[Side]) -> None:
        """End the run if a wait for a lost learner is too long at the next event.

        Raises:
            PeerLostError: a learner has waited too long; the message names the lost
                learner, the time, and the learner that waited.
        """
        waits = [
            (max(side.since, self._at[rank]) + self._silence, rank, side)
            for side in running
            if side.waiting and not self.has(side.rank)
            for rank in self._needs(side.effect)
            if rank in self._at
        ]
        upcoming = self._clock.next()
        if not waits:
            gone = [side.rank for side in running if self.has(side.rank)]
            if upcoming is None and gone:
                raise PeerLostError(f"{self._story(gone[0])}; nobody waits for it")
            return
        when, rank, side = min(waits, key=lambda wait: wait[:2])
        if upcoming is not None and upcoming < when:
            return
        self._clock.now = when
        raise PeerLostError(
            f"at {when / 1e9:g} s of virtual time, learner {rank} has been silent for "
            f"{self._silence / 1e9:g} s: it {self._how[rank]} at "
            f"{self._at[rank] / 1e9:g} s; waiting: {side.story()}",
            self._story(rank),
        )

    def _story(self, rank: int) -> str:
        at = f"{self._at[rank] / 1e9:g} s of virtual time"
        return f"learner {rank} {self._how[rank]} at {at}"
