"""Synchronous data parallelism (SC-PSGD): gradients are averaged in every step.

    x_{k+1} = x_k - lr * sum_i w_i g_i(x_k) / sum_i w_i

w_i is the number of samples in learner i's batch, so that batches of unequal sizes give
the gradient of the whole batch. All replicas stay equal, bit for bit. Cost: 2n(N-1)/N
bytes a step for n bytes of parameters. Memory: P elements for the message.

What is averaged is `learner.gradient_buffer`: the P weighted gradients
(`learner.grads`) and, before them, for K parameters

    1           1 if the learner has come to the end of its epoch, else 0
    1           the samples of its batch, w_i
    K           for each parameter, 1 if the backward pass has reached it, else 0

Where the gradients are large, they are averaged bucket by bucket beside the backward
pass (Li et al., VLDB 2020, arXiv 2006.15704): the pass finds the gradients of the last
layers first, and their average is under way while it goes on. The bucket with the first
parameters comes last and has the K + 2 numbers.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm, UnequalStepsError
from espnet_distopt.core.effects import (
    AllReduceMean,
    Begin,
    Effect,
    Program,
    Ranks,
    Wait,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

BUCKET = 25 << 20
"""The bytes at which a bucket is full, as DDP's. Many small ones would take the time of
as many messages."""

FIRST = 1 << 20
"""The bytes at which the first bucket is full: few, so that it is ready soon."""


def numbers_of(learner: Learner) -> int:
    """Return how many numbers stand before `learner.grads` in a message."""
    return 2 + len(learner.parameters)


class GradientMean:
    """Averages the gradients of one learner with those of others.

    Args:
        learner: the learner.
        ranks: the learners whose gradients are averaged; None means all.
    """

    def __init__(self, learner: Learner, ranks: Ranks = None) -> None:
        learner.reserve(numbers_of(learner), FIRST, BUCKET)
        self._ranks = ranks
        self._under_way: list[Any] = []

    def after_bucket(self, learner: Learner, number: int) -> Program:
        """Begin to average a bucket; the backward pass has its gradients.

        Args:
            learner: this learner.
            number: the number of the bucket, which is not the last one.

        Raises:
            InputError: an earlier pass has failed after it had sent a part.
        """
        if number == 0:
            self._check_complete(learner)
        part = learner.buckets[number].of(learner.gradient_buffer)
        self._under_way.append((yield Begin(AllReduceMean(part, self._ranks))))

    def __call__(self, learner: Learner, ended: bool = False) -> Program:
        """Average the gradients, or agree that the epoch has ended.

        Cost: 2n(N-1)/N bytes for n bytes of gradients and N learners.

        Raises:
            UnequalStepsError: some learners have ended their epoch, and others have
                not.
            InputError: the epoch ends after a pass that has failed, see `after_bucket`.
        """
        if ended:
            self._check_complete(learner)
        last = learner.buckets[-1].of(learner.gradient_buffer)
        for number in range(len(self._under_way), len(learner.buckets) - 1):
            yield from self.after_bucket(learner, number)
        _write_numbers(learner, last, ended)
        mean = yield from self._complete(last)
        unpack(learner, mean, ended)

    def _check_complete(self, learner: Learner) -> None:
        if self._under_way:
            raise InputError(
                f"{learner.where}: an earlier backward pass has failed after a part of "
                "its gradients had been sent, and the other learners have averaged "
                "that: let its error end the training, or use an algorithm that "
                "averages models (local_sgd, bmuf, adpsgd)"
            )

    def _complete(self, last: Tensor) -> Generator[Effect, Any, Tensor]:
        """Average the last bucket, and wait for the others; return its mean."""
        mean: Tensor = yield AllReduceMean(last, self._ranks)
        under_way, self._under_way = self._under_way, []
        for handle in under_way:
            yield Wait(handle)
        return mean


def pack(learner: Learner, ended: bool = False) -> Tensor:
    """Write the numbers to `learner.gradient_buffer` and return it, to be averaged."""
    _write_numbers(learner, learner.gradient_buffer, ended)
    return learner.gradient_buffer


def _write_numbers(learner: Learner, message: Tensor, ended: bool) -> None:
    used = [float(use) for use in learner.used]
    numbers = message.new_tensor([float(ended), learner.samples, *used])
    message[: len(numbers)] = numbers


@torch.no_grad()
def unpack(learner: Learner, mean: Tensor, ended: bool = False) -> None:
    """Write the gradient of all batches to each parameter's `.grad`.

    Args:
        learner: this learner.
        mean: the mean of the learners' messages, or of the beginning of them; the rest
            of it is in `learner.gradient_buffer`.
        ended: whether this learner has no more batches; the mean then has no gradient.

    Raises:
        UnequalStepsError: some learners have ended their epoch, and others have not.
    """
    share_ended, samples, *used = mean[: numbers_of(learner)].tolist()
    if share_ended != float(ended):
        raise UnequalStepsError(learner, ended)
    if ended:
        return
    if mean.data_ptr() != learner.gradient_buffer.data_ptr():
        learner.gradient_buffer[: len(mean)].copy_(mean)
    divisor = samples if samples > 0 else 1.0
    learner.use_gradients([use > 0 for use in used], divisor)


@dataclass(frozen=True, kw_only=True)
class AllReduceConfig:
    """`allreduce` has no options."""


class AllReduce(Algorithm):
    """Synchronous SGD with an all-reduce of gradients, the baseline for the others."""

    wants_gradients = True
    equal_steps = True
    may_freeze = True

    def __init__(self, config: AllReduceConfig, learner: Learner) -> None:
        self.config = config
        self._average = GradientMean(learner)

    def after_bucket(self, learner: Learner, number: int) -> Program:
        """Begin to average a part of the gradients, beside the backward pass."""
        yield from self._average.after_bucket(learner, number)

    def after_backward(self, learner: Learner) -> Program:
        """Average the gradients, weighted by samples.

        Raises:
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size > 1:
            yield from self._average(learner)

    def finish(self, learner: Learner) -> Program:
        """Check that every learner has come to the end of its epoch.

        Raises:
            UnequalStepsError: another learner has not.
        """
        if learner.size > 1:
            yield from self._average(learner, ended=True)

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """All replicas are equal after each step."""
        return tuple(range(learner.size))
