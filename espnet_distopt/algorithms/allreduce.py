"""Synchronous data parallelism (SC-PSGD): gradients are averaged in every step.

    x_{k+1} = x_k - lr * sum_i w_i g_i(x_k) / sum_i w_i

w_i is the number of samples in learner i's batch, so that uneven batches give the
gradient of the whole batch. All replicas stay equal, bit for bit. Cost: 2n(N-1)/N bytes
a step for n bytes of parameters. Memory: P elements (the flat gradient).
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm, UnequalStepsError
from espnet_distopt.effects import AllReduceMean, Effect, Program
from espnet_distopt.learner import Learner


@dataclass(frozen=True, kw_only=True)
class AllReduceConfig:
    """`allreduce` has no options."""


class AllReduce(Algorithm):
    """Synchronous SGD with an all-reduce of gradients, the baseline of all others."""

    wants_gradients = True

    def __init__(self, config: AllReduceConfig, learner: Learner) -> None:
        self.config = config

    def after_backward(self, learner: Learner) -> Program:
        """Average the gradients, weighted by samples.

        Raises:
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size == 1:
            return
        ended, samples, used = yield from self._agree(learner, ended=False)
        if ended > 0:
            raise UnequalStepsError(self._unequal(learner))
        assert learner.grads is not None
        if samples > 0:
            learner.grads.mul_(learner.samples / samples)
        yield AllReduceMean(learner.grads)
        learner.use_gradients(used)

    def finish(self, learner: Learner) -> Program:
        """Check that every learner has come to the end of its epoch."""
        if learner.size == 1:
            return
        ended, _, _ = yield from self._agree(learner, ended=True)
        if ended < 1:
            raise UnequalStepsError(self._unequal(learner))

    def _agree(
        self, learner: Learner, ended: bool
    ) -> Generator[Effect, Any, tuple[float, float, list[bool]]]:
        """Return the share of ended learners, the mean samples, the used parameters."""
        message = torch.tensor(
            [float(ended), learner.samples, *map(float, learner.used)],
            dtype=torch.float64,
            device=learner.params.device,
        )
        mean = (yield AllReduceMean(message)).tolist()
        return mean[0], mean[1], [value > 0 for value in mean[2:]]

    def _unequal(self, learner: Learner) -> str:
        return (
            f"learner {learner.rank}, step {learner.steps}: the learners have unequal "
            "numbers of steps in this epoch, and allreduce needs equal ones; even out "
            "the data, or use an algorithm that does not (bmuf, adpsgd)"
        )

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the parameters: they are the same everywhere."""
        yield from ()
        return learner.params.detach().clone()
