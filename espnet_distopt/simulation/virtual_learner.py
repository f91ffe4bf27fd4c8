"""A virtual learner of a simulation: its replica and its training loop.

The loop runs the same programs as a `Session` does (`algorithms.lifecycle`). It yields
two more effects of its own, which only the simulation driver knows.
"""

import copy
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import Algorithm, build
from espnet_distopt.algorithms.lifecycle import Lifecycle
from espnet_distopt.core.effects import Effect, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.core.model_buffers import model_buffers
from espnet_distopt.simulation.compute import Compute

Gradient = Callable[[int], float] | None
"""Runs the forward and backward pass of a step, by its number; returns the loss. None
computes nothing, for a simulation of time alone; the optimizer then steps in place."""

BACKWARD = 2 / 3
"""The share of a step's time that its backward pass takes: it multiplies matrices of
the same sizes twice as often as the forward pass."""


@dataclass(frozen=True)
class Work:
    """Compute for some virtual seconds."""

    seconds: float


@dataclass(frozen=True)
class Stepped:
    """A step has ended, with this loss."""

    loss: float


@dataclass(frozen=True)
class Step:
    """A line of the record: `rank` has made its step `step` (from 1), at `seconds`.

    Attributes:
        seconds: the virtual time.
        rank: the learner.
        step: the number of the step.
        loss: its loss.
        bytes_sent: the bytes that the learner has sent since its last `metrics`. Lines
            are equal whatever it is, because a resumed run counts anew.
    """

    seconds: float
    rank: int
    step: int
    loss: float
    bytes_sent: int = field(compare=False)


class VirtualLearner:
    """A replica, and the gradient that it descends.

    Attributes:
        bytes_sent: the bytes that the learner has sent since the last `metrics`.

    Args:
        model: the replica of this learner.
        optimizer: the optimizer over its parameters. If gradients are clipped, a
            pre-hook of its step does so.
        gradient: function that runs the forward and backward pass of a step. Gradients
            are zero before it. Its random numbers come from torch's default generator,
            which is seeded for each step.
        algorithm: the name of an algorithm (`espnet_distopt.algorithms.names`).
        rank: the number of this learner, 0 <= rank < size.
        size: the number of learners.
        message_factor: by how much messages count as larger than they are.
        options: the options of the algorithm.

    Raises:
        InputError: the algorithm or an option is unknown, or the number of learners is
            impossible.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        gradient: Gradient,
        algorithm: str,
        rank: int = 0,
        size: int = 1,
        message_factor: float = 1.0,
        **options: Any,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.gradient = gradient
        self.learner = Learner(model, optimizer, rank, size)
        self._build = partial(build, algorithm, options, self.learner)
        self._lifecycle = Lifecycle(model, self.learner, self._build())
        self.bytes_sent = 0
        self._watches = self.algorithm.wants_gradients and size > 1
        if self._watches:
            self.learner.watch_backward(lambda: None, factor=message_factor)

    @property
    def algorithm(self) -> Algorithm:
        """What this learner runs."""
        return self._lifecycle.algorithm

    @algorithm.setter
    def algorithm(self, algorithm: Algorithm) -> None:
        self._lifecycle.algorithm = algorithm

    def start(self) -> Program:
        """Begin at learner 0's model, with its buffers."""
        yield from self._lifecycle.start()

    def join(self, member: "VirtualLearner", members: Members, steps: int) -> None:
        """Become a replacement of this learner, which is dead.

        It takes over the member's parameters, the optimizer's state, and what the
        algorithm must know to begin.
        """
        learner, state = self.learner, member.state_dict()
        self._lifecycle.close()
        learner.forget_algorithm()
        learner.members = members
        learner.params.copy_(state["learner"]["params"])
        learner.steps = learner.updates = steps
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_untrained(state)
        self._lifecycle = Lifecycle(self.model, learner, self._build())
        self.algorithm.join(learner, state["algorithm"])

    def epoch(
        self, steps: int, compute: Compute, seed: int, pausing: bool = False
    ) -> Generator[Any, Any, None]:
        """Train for `steps` steps; finish the epoch, or stop within it if `pausing`."""
        yield from self.train(steps, compute, seed)
        yield Work(0)
        yield from self._lifecycle.pause() if pausing else self._lifecycle.finish()

    def train(
        self, steps: int, compute: Compute, seed: int
    ) -> Generator[Any, Any, None]:
        """Train for `steps` steps of an epoch.

        Every program of the algorithm begins at a resumption of its own, so that
        recordings count the sections of programs, here and in real processes.
        """
        learner, lifecycle = self.learner, self._lifecycle
        yield from lifecycle.begin_batch()
        for _ in range(steps):
            loss = yield from self._passes(
                compute.of(learner.rank, learner.steps), seed
            )
            self.optimizer.step()
            yield from lifecycle.step()
            yield Stepped(loss)

    def _passes(self, seconds: float, seed: int) -> Generator[Any, Any, float]:
        """Run the forward and backward pass of a step, in `seconds`; return the loss.

        If the algorithm uses the gradients bucket by bucket, the backward pass finds
        each of them after its share of the time.
        """
        buckets = self.learner.buckets
        if len(buckets) < 2:
            yield Work(seconds)
            loss = self._descend(seed)
        else:
            yield Work((1 - BACKWARD) * seconds)
            loss = self._descend(seed)
            elements = self.learner.gradient_buffer.numel()
            for number, bucket in enumerate(buckets):
                share = (bucket.stop - bucket.start) / elements
                yield Work(share * BACKWARD * seconds)
                if number < len(buckets) - 1:
                    yield from self._lifecycle.after_bucket(number)
        if self._watches:
            yield from self._lifecycle.after_backward()
            yield Work(0)
        return loss

    def consensus(self) -> Generator[Effect, Any, Tensor]:
        """Average what BatchNorm has learnt; return the consensus model, (P,)."""
        return (yield from self._lifecycle.consensus())

    def _descend(self, seed: int) -> float:
        """Compute the gradient, with random numbers that no schedule can shift."""
        learner = self.learner
        if self.gradient is None:
            return 0.0
        key = f"{seed} gradient {learner.rank} {learner.steps}"
        self.optimizer.zero_grad()
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(random.Random(key).getrandbits(63))
        try:
            return self.gradient(learner.steps)
        finally:
            torch.set_rng_state(before)

    def metrics(self) -> dict[str, float]:
        """Return figures since the last call: bytes sent, and the algorithm's."""
        figures = {"bytes": float(self.bytes_sent), **self.algorithm.metrics()}
        self.bytes_sent = 0
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the state between epochs.

        It has tensors, numbers, strings, lists and dicts only.
        """
        untrained = model_buffers(self.model, self.learner)
        return {
            "learner": self.learner.state_dict(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "algorithm": self.algorithm.state_dict(),
            "untrained": [tensor.clone() for tensor in untrained],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.learner.load_state_dict(state["learner"])
        self.algorithm.load_state_dict(state["algorithm"])
        self._load_untrained(state)

    def _load_untrained(self, state: dict[str, Any]) -> None:
        untrained = model_buffers(self.model, self.learner)
        for tensor, saved in zip(untrained, state["untrained"], strict=True):
            tensor.copy_(saved)
