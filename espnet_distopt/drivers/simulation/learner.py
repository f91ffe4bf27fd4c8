"""A virtual learner of a simulation: its training loop, and its two sides at run time.

The loop calls the algorithm where a `Session` does. Besides the algorithm's effects it
yields four of its own, which only the simulation driver knows.
"""

import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import build
from espnet_distopt.drivers.simulation.cluster import Compute
from espnet_distopt.effects import AwaitInvitation, AwaitStep, Exchange
from espnet_distopt.learner import Learner

Gradient = Callable[[int], float]
"""Runs the forward and backward pass of a step, by its number; returns the loss."""


@dataclass(frozen=True)
class Work:
    """Compute for some virtual seconds."""

    seconds: float


@dataclass(frozen=True)
class Stepped:
    """A step has ended, with this loss, and its result is published."""

    loss: float


@dataclass(frozen=True)
class EndGossip:
    """Let the gossip come to its end, and wait for that."""


@dataclass(frozen=True)
class Meet:
    """Wait for all learners."""


@dataclass(frozen=True)
class Step:
    """A line of the record: `rank` has made its step `step` (from 1), at `seconds`."""

    seconds: float
    rank: int
    step: int
    loss: float


class VirtualLearner:
    """A replica, and the gradient that it descends.

    Unlike a `Session`, it leaves alone what is not trained (buffers, frozen
    parameters): let the replicas begin with equal ones.

    Attributes:
        bytes_sent: since the last `metrics`.

    Args:
        model: this learner's replica.
        optimizer: over its parameters; clips, if at all, in a pre-hook of its step.
        gradient: see `Gradient`. Gradients are zero before it. Its random numbers come
            from torch's default generator, which is seeded for each step.
        algorithm: a name in `espnet_distopt.algorithms.ALGORITHMS`.
        rank: of this learner, 0 <= rank < size.
        size: number of learners.
        options: the algorithm's options.

    Raises:
        InputError: unknown algorithm or option, or an impossible number of learners.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        gradient: Gradient,
        algorithm: str,
        rank: int = 0,
        size: int = 1,
        **options: Any,
    ) -> None:
        self.optimizer = optimizer
        self.gradient = gradient
        self.learner = Learner(model, optimizer, rank, size)
        self.algorithm = build(algorithm, options, self.learner)
        self.bytes_sent = 0
        if self.algorithm.wants_gradients and size > 1:
            self.learner.watch_backward(lambda: None)

    def epoch(
        self, steps: int, compute: Compute, seed: int
    ) -> Generator[Any, Any, None]:
        """Train for `steps` steps and finish the epoch."""
        learner, algorithm = self.learner, self.algorithm
        for _ in range(steps):
            yield Work(compute.of(learner.rank, learner.steps))
            loss = self._descend(seed)
            if algorithm.wants_gradients:
                yield from algorithm.after_backward(learner)
            self.optimizer.step()
            learner.steps += 1
            yield from algorithm.after_step(learner)
            yield Stepped(loss)
        if algorithm.wants_gossip:
            yield EndGossip()
            yield Meet()
        yield from algorithm.finish(learner)
        learner.check_storage()

    def _descend(self, seed: int) -> float:
        """Compute the gradient, with random numbers that no schedule can shift."""
        learner = self.learner
        key = f"{seed} gradient {learner.rank} {learner.steps}"
        self.optimizer.zero_grad()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(random.Random(key).getrandbits(63))
            return self.gradient(learner.steps)

    def metrics(self) -> dict[str, float]:
        """Return figures since the last call: bytes sent, and the algorithm's."""
        figures = {"bytes": float(self.bytes_sent), **self.algorithm.metrics()}
        self.bytes_sent = 0
        return figures


@dataclass
class Side:
    """The training or the gossip side of a learner, and the effect it waits for."""

    rank: int
    name: str
    program: Generator[Any, Any, Any]
    waits_for: Any = None
    ended: bool = False
    value: Any = None

    def story(self) -> str:
        """Return who waits for what."""
        effect = self.waits_for
        what = type(effect).__name__
        match effect:
            case Exchange(peer):
                what += f" with {peer}"
            case AwaitInvitation(peers):
                what += f" from {', '.join(map(str, peers))}"
        return f"{self.name} of learner {self.rank} for {what}"


@dataclass
class Sides:
    """How far one learner has come in an epoch, and its mail: (sender, retired)."""

    training: Side
    gossip: Side
    gossiping: bool = False
    published: int = 0
    seen: int = 0
    ending: bool = False
    mailbox: deque[tuple[int, bool]] = field(default_factory=deque)
    retired: set[int] = field(default_factory=set)

    def answer(self) -> tuple[bool, Any]:
        """Return whether the gossip side's wait is over, and its result."""
        match self.gossip.waits_for:
            case AwaitStep():
                over = self.published > self.seen or self.ending
                self.seen = self.published
                return over, not self.ending
            case AwaitInvitation(peers):
                while self.mailbox and not self.retired.issuperset(peers):
                    sender, retired = self.mailbox.popleft()
                    if not retired:
                        return True, sender
                    self.retired.add(sender)
                return self.retired.issuperset(peers), None
        return False, None
