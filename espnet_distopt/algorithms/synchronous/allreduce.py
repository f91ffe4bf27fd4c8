"""Synchronous data parallelism (SC-PSGD): gradients are averaged in every step.

    x_{k+1} = x_k - lr * sum_i w_i g_i(x_k) / sum_i w_i

w_i is the number of samples in learner i's batch, so that batches of unequal sizes give
the gradient of the whole batch. All replicas stay equal, bit for bit. Cost: 2n(N-1)/N
bytes a step for n bytes of parameters. Memory: P elements for the message.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.synchronous.gradient_mean import GradientMean
from espnet_distopt.core.effects import Effect, Program
from espnet_distopt.core.learner import Learner


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

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the parameters, which are the same on every learner."""
        yield from ()
        return learner.params.detach().clone()
