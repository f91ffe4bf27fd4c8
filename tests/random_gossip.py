"""AD-PSGD under random schedules: training and gossip side by side, event by event.

This is a second, much smaller simulation than the package's, and knows nothing of it:
what both find holds for the algorithm and not for a driver.
"""

import random
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Barrier,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
    RunInBackground,
)
from tests.replicas import Replica


class DeadlockError(AssertionError):
    """Nobody can go on, and not everybody has come to the end."""


@dataclass
class _Side:
    """One program of one learner, and what it waits for."""

    program: Program
    effect: Any = None
    result: Any = None
    since: int = 0
    done: bool = False


@dataclass
class _Peer:
    training: _Side
    gossip: _Side
    published: int
    seen: int = 0
    progress: int = 0
    barriers: int = 0
    mails: deque[int | None] = field(default_factory=deque)


@dataclass(frozen=True)
class Event:
    """One exchange: what learner `active` sent, and what `passive` sent."""

    active: int
    passive: int
    sent: Tensor
    answered: Tensor


class Gossip:
    """Training and gossip programs of all learners, one random event after another.

    Training programs yield None where a step has ended and its result is published,
    and `Barrier` where they wait for all others.

    Args:
        replicas: the learners, started.
        epochs: the training program of each.
        seed: of the schedule.
        patience: how many times less often the gossip side gets its turn.
        eager: lockstep; all learners step, then all gossip that can be done is done.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        epochs: Sequence[Generator[Effect | None, Any, None]],
        seed: int = 0,
        patience: float = 1,
        eager: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self._patience = patience
        self._eager = eager
        self.events: list[Event] = []
        self.waits: Counter[int] = Counter()
        self._retired = 0
        self._peers = [
            _Peer(
                _Side(epoch),  # type: ignore[arg-type]
                _Side(replica.algorithm.gossip(replica.learner)),
                published=int(eager),
            )
            for replica, epoch in zip(replicas, epochs, strict=True)
        ]

    def run(self) -> None:
        """Run to the end of all programs."""
        ranks = range(len(self._peers))
        turns: list[int] = []
        while True:
            gossip = [r for r in ranks if self._gossip_ready(r)]
            train = [r for r in ranks if self._training_ready(r)]
            if not gossip and not train:
                break
            if self._eager:
                if not turns and not gossip:
                    turns = train
                if turns:
                    self._train(turns.pop(0))
                else:
                    self._gossip(gossip[0])
                continue
            weights = [1.0] * len(gossip) + [self._patience] * len(train)
            chosen = self._random.choices(range(len(weights)), weights)[0]
            if chosen < len(gossip):
                self._gossip(gossip[chosen])
            else:
                self._train(train[chosen - len(gossip)])
        stuck = [r for r, p in enumerate(self._peers) if not p.gossip.done]
        stuck += [r for r, p in enumerate(self._peers) if not p.training.done]
        if stuck:
            raise DeadlockError(f"learners {stuck} cannot go on")

    def _training_ready(self, rank: int) -> bool:
        peer = self._peers[rank]
        if peer.training.done:
            return False
        match peer.training.effect:
            case AwaitGossip():
                return peer.progress != peer.training.since
            case Barrier():
                return all(p.barriers >= peer.barriers for p in self._peers)
        return True

    def _train(self, rank: int) -> None:
        peer, side = self._peers[rank], self._peers[rank].training
        try:
            side.effect = side.program.send(None)
        except StopIteration:
            side.done = True
            return
        if side.effect is None:
            peer.published += 1
        elif isinstance(side.effect, Barrier):
            peer.barriers += 1
        else:
            assert isinstance(side.effect, AwaitGossip), side.effect
            side.since = peer.progress
            self.waits[rank] += 1

    def _gossip_ready(self, rank: int) -> bool:
        peer, side = self._peers[rank], self._peers[rank].gossip
        if side.done or side.result is not None:
            return not side.done
        match side.effect:
            case AwaitStep():
                return peer.published > peer.seen or peer.training.done
            case AwaitInvitation():
                return bool(peer.mails)
            case Invite(other) | Exchange(other):
                return self._offers(other, rank)
        return True

    def _offers(self, rank: int, other: int) -> bool:
        """Return whether `rank` waits for `other` to exchange with it."""
        side = self._peers[rank].gossip
        waits = isinstance(side.effect, Exchange) and side.result is None
        return waits and side.effect.peer == other

    def _gossip(self, rank: int) -> None:
        peer, side = self._peers[rank], self._peers[rank].gossip
        result, side.result = side.result, None
        match side.effect:
            case AwaitStep():
                result = not peer.training.done
                peer.seen = peer.published
            case AwaitInvitation():
                result = peer.mails.popleft()
            case Exchange(other) if result is None:
                self._deliver(rank, other)
                return
            case Exchange(_, tensor, into):
                sent, received = result
                assert torch.equal(tensor, sent), "changed while it was sent"
                result = into.copy_(received)
            case RunInBackground(work):
                work()
            case Retire(actives, passives):
                self._retired += 1
                if self._retired == len(actives):
                    for other in passives:
                        self._peers[other].mails.append(None)
        try:
            side.effect = side.program.send(result)
        except StopIteration:
            side.done = True
        else:
            if isinstance(side.effect, Invite):
                self._peers[side.effect.peer].mails.append(rank)
        peer.progress += 1

    def _deliver(self, rank: int, other: int) -> None:
        active, passive = sorted((rank, other), key=lambda r: r % 2)
        sides = [self._peers[r].gossip for r in (active, passive)]
        sent, answered = (side.effect.tensor.clone() for side in sides)
        self.events.append(Event(active, passive, sent, answered))
        sides[0].result = (sent, answered.clone())
        sides[1].result = (answered, sent.clone())
