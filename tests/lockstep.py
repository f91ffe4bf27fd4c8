"""Runs the programs of several learners in one process, for tests.

`run` advances programs that meet in collectives; `Gossip` runs training and gossip
programs side by side under a seeded random schedule.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.algorithms import Algorithm, build
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core.effects import (
    AllReduceMean,
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Begin,
    Broadcast,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
    RunInBackground,
    Wait,
)
from espnet_distopt.core.learner import Learner


class DeadlockError(AssertionError):
    """Nobody can go on, and not everybody has come to the end."""


class Point(nn.Module):
    """A model that is one vector."""

    def __init__(self, x: Sequence[float], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x, dtype=dtype))


@dataclass
class Replica:
    """One learner with all that belongs to it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learner: Learner
    algorithm: Algorithm

    @classmethod
    def of(
        cls,
        name: str,
        model: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        rank: int = 0,
        size: int = 1,
        **options: Any,
    ) -> "Replica":
        made = optimizer(model.parameters())
        learner = Learner(model, made, rank, size)
        algorithm = build(name, options, learner)
        if algorithm.wants_gradients:
            learner.watch_backward(lambda: None)
        return cls(model, made, learner, algorithm)

    @property
    def x(self) -> list[float]:
        values: list[float] = self.learner.params.tolist()
        return values

    def descend(self, gradient: Sequence[float] | float) -> None:
        """Take one optimizer step along a given gradient."""
        like = self.learner.params
        flat = torch.as_tensor(gradient, dtype=like.dtype).expand_as(like)
        for parameter, slot in zip(
            self.learner.parameters, self.learner.slots, strict=True
        ):
            parameter.grad = slot.of(flat.clone())
        self.optimizer.step()

    def step(self, gradient: Sequence[float] | float | None) -> Program:
        """One attempted step; None skips the update, as a NaN would."""
        if gradient is not None:
            self.descend(gradient)
        self.learner.steps += 1
        yield from self.algorithm.after_step(self.learner)

    def epoch(self, gradients: Iterable[Sequence[float] | float | None]) -> Program:
        """Steps along given gradients, and the end of the epoch."""
        for gradient in gradients:
            yield from self.step(gradient)
        yield from self.algorithm.finish(self.learner)


def run(*programs: Generator[Effect, Any, Any]) -> list[Any]:
    """Run programs to their ends; returns their values.

    One program is one learner, or any number of identical ones: means change nothing.
    What begins is carried out at once, on what there was then.
    """
    values: list[Any] = [None] * len(programs)
    results: list[Any] = [None] * len(programs)
    while True:
        waiting: dict[int, Effect] = {}
        for rank, program in enumerate(programs):
            try:
                waiting[rank] = program.send(results[rank])
            except StopIteration as stop:
                if stop.value is not None:
                    values[rank] = stop.value
        if not waiting:
            return values
        if len(waiting) < len(programs):
            raise DeadlockError(f"only {sorted(waiting)} came to {waiting}")
        results = _meet([waiting[rank] for rank in range(len(programs))])


def _meet(effects: list[Any]) -> list[Tensor]:
    if isinstance(effects[0], Wait):
        return [effect.handle for effect in effects]
    effects = [e.collective if isinstance(e, Begin) else e for e in effects]
    kind, tensors = type(effects[0]), [effect.tensor for effect in effects]
    assert all(type(effect) is kind for effect in effects), effects
    assert len({(t.shape, t.dtype) for t in tensors}) == 1, "unequal messages"
    if kind is AllReduceMean and len(tensors) > 1:
        result = torch.stack(tensors).sum(0).div_(len(tensors))
    else:
        assert kind in (AllReduceMean, Broadcast), kind
        result = tensors[0].clone()
    for tensor in tensors:
        tensor.copy_(result)
    return tensors


def aside(program: Generator[RunInBackground, Any, Any]) -> Any:
    """Run a program of the gossip side that needs nobody; returns its value."""
    while True:
        try:
            effect = next(program)
        except StopIteration as stop:
            return stop.value
        assert isinstance(effect, RunInBackground), effect
        effect.work()


def correct(snapshot: Snapshot, received: Tensor) -> None:
    """Bring what a peer has sent."""
    aside(snapshot.end_exchange(snapshot.spare().copy_(received)))  # type: ignore[arg-type]


def end(replicas: Sequence[Replica]) -> None:
    """Run the end of an epoch of learners whose gossip has ended."""
    run(*(r.algorithm.finish(r.learner) for r in replicas))


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

    Training programs yield None where a step has ended and its result is published.

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
        if isinstance(peer.training.effect, AwaitGossip):
            return peer.progress != peer.training.since
        return not peer.training.done

    def _train(self, rank: int) -> None:
        peer, side = self._peers[rank], self._peers[rank].training
        try:
            side.effect = side.program.send(None)
        except StopIteration:
            side.done = True
            return
        if side.effect is None:
            peer.published += 1
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
            case Exchange(other):
                answer = self._peers[other].gossip
                waits = isinstance(answer.effect, Exchange) and answer.result is None
                return waits and answer.effect.peer == rank
        return True

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
            case Invite(other):
                self._peers[other].mails.append(rank)
            case Retire(actives, passives):
                self._retired += 1
                if self._retired == actives:
                    for other in passives:
                        self._peers[other].mails.append(None)
        try:
            side.effect = side.program.send(result)
        except StopIteration:
            side.done = True
        peer.progress += 1

    def _deliver(self, rank: int, other: int) -> None:
        active, passive = sorted((rank, other), key=lambda r: r % 2)
        sides = [self._peers[r].gossip for r in (active, passive)]
        sent, answered = (side.effect.tensor.clone() for side in sides)
        self.events.append(Event(active, passive, sent, answered))
        sides[0].result = (sent, answered.clone())
        sides[1].result = (answered, sent.clone())
