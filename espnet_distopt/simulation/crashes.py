"""The module simulates crashes: learners stop, and others notice it after a while."""

from collections.abc import Mapping, Sequence
from typing import Any

from espnet_distopt.core.effects import (
    AwaitInvitation,
    Begin,
    Exchange,
    GroupCollective,
    NeighbourAllGather,
    Wait,
)
from espnet_distopt.errors import PeerLostError
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.sides import Side
from espnet_distopt.simulation.virtual_learner import Barrier


class Crashes:
    """The crashes of a simulation, and the waits for learners that have crashed.

    An exchange or a collective with a crashed learner never completes. As in the
    process-group driver, a learner that waits for one that has been silent for too long
    ends the run.

    Args:
        clock: the simulation's clock.
        size: the number of learners.
        at: learner -> the virtual second at which it crashes.
        silence: the seconds after which a wait for a crashed learner ends the run.
    """

    def __init__(
        self, clock: Clock, size: int, at: Mapping[int, float], silence: float
    ) -> None:
        self._clock = clock
        self._everybody = tuple(range(size))
        self._at = {rank: round(seconds * 1e9) for rank, seconds in at.items()}
        self._silence = round(silence * 1e9)

    def __bool__(self) -> bool:
        return bool(self._at)

    def has(self, rank: int) -> bool:
        """Return whether `rank` has crashed by now."""
        return rank in self._at and self._at[rank] <= self._clock.now

    def hit(self, effect: Any) -> bool:
        """Return whether `effect` needs a learner that has crashed."""
        return any(self.has(rank) for rank in self._needs(effect))

    def _needs(self, effect: Any) -> Sequence[int]:
        match effect:
            case Exchange(peer):
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
        """End the run if a wait for a crashed learner is too long at the next event.

        Args:
            running: the sides of all learners that have begun and not ended.

        Raises:
            PeerLostError: a learner has waited too long; the message names the crashed
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
            f"{self._silence / 1e9:g} s: it crashed at {self._at[rank] / 1e9:g} s; "
            f"waiting: {side.story()}",
            self._story(rank),
        )

    def _story(self, rank: int) -> str:
        return f"learner {rank} crashed at {self._at[rank] / 1e9:g} s of virtual time"
