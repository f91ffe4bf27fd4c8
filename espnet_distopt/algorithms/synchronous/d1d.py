"""Delay-by-one (D1D): one all-reduce a step, which the next step hides.

IBM's IEEE/ACM TASLP 2021 article (arXiv 2110.11199) names D1D in its abstract; its
exact published form could not be read. These are the two readings, under two names:

    d1d_model   x_{k+1}^i = (1/N) sum_j x_k^j - u_i(x_k^i)
    d1d_grad    x_{k+1} = x_k - lr sum_i w_i g_i(x_{k-1}) / sum_i w_i

`d1d_model` averages the models (`dpsgd` on the complete graph); `d1d_grad` the
gradients, weighted by samples as in `allreduce`, and all replicas stay equal, bit for
bit. Fastest where learners are equally fast; one slow learner slows all. Both are
stable on a curvature of h for lr h < 1 (plain SGD: 2). One learner alone has nothing to
hide, and trains as without them.

Cost: 2n(N-1)/N bytes a step for n bytes of parameters, beside the computation, and the
same once more at an epoch's end. Memory of `d1d_grad`: 3P elements (the message, once
more in flight, and once more for a run that is resumed).
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.synchronous.dpsgd import (
    Dpsgd,
    DpsgdConfig,
    check_equal_steps,
)
from espnet_distopt.algorithms.synchronous.gradient_mean import (
    average,
    pack,
    reserve,
    unpack,
)
from espnet_distopt.core.effects import AllReduceMean, Begin, Effect, Program, Wait
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class D1dModelConfig:
    """`d1d_model` has no options."""


class D1dModel(Dpsgd):
    """Delay-by-one of models; one of two readings, the published one is unknown."""

    def __init__(self, config: D1dModelConfig, learner: Learner) -> None:
        super().__init__(DpsgdConfig(topology="complete"), learner)


@dataclass(frozen=True, kw_only=True)
class D1dGradConfig:
    """`d1d_grad` has no options."""


class D1dGrad(Algorithm):
    """Delay-by-one of gradients; one of two readings, the published one is unknown.

    The first step's gradient is zero, for every parameter: the model stays where it is
    but for weight decay, and Adam counts a step. A step has one backward pass: the
    gradients of several cannot be accumulated. Where a GradScaler changes its scale,
    the gradient of the step before is divided by the new scale, once.

    Attributes:
        sent: this learner's message of the last step, which the all-reduce in flight
            sends; of no samples before the first step.
    """

    wants_gradients = True
    equal_steps = True

    def __init__(self, config: D1dGradConfig, learner: Learner) -> None:
        reserve(learner)
        self.config = config
        self.sent = torch.zeros_like(learner.gradient_buffer)
        self._handle: Any = None
        self._mean: Tensor | None = None
        self._step = -1

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters, with no gradient to apply."""
        yield from super().start(learner)
        self.sent = torch.zeros_like(learner.gradient_buffer)

    def after_backward(self, learner: Learner) -> Program:
        """Use the mean gradient of the last step; begin to average this step's.

        Raises:
            InputError: it is not the first backward pass of the step.
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size == 1:
            return
        if self._step == learner.steps:
            raise InputError(
                f"learner {learner.rank}, step {learner.steps}: d1d_grad takes one "
                "backward pass a step; accumulate no gradients (accum_grad: 1), or use "
                "an algorithm that can (d1d_model, allreduce)"
            )
        self._step = learner.steps
        sent = pack(learner).clone()
        mean = yield from self._complete(learner)
        _give(learner, mean)
        self._mean = None
        self.sent = sent
        self._handle = yield Begin(AllReduceMean(sent.clone()))

    def finish(self, learner: Learner) -> Program:
        """Wait for the last step's gradients, which the next epoch's first step takes.

        Raises:
            UnequalStepsError: another learner has not come to the end of its epoch.
        """
        if learner.size == 1:
            return
        yield from self._complete(learner)
        yield from average(learner, ended=True)

    def next_stop(self, learner: Learner) -> int:
        """Another learner may be a step ahead, for it waits a step later."""
        return learner.steps + 2

    def pause(self, learner: Learner) -> Program:
        """Wait for the gradients in flight; they will be sent once more."""
        if learner.size > 1:
            yield from self._complete(learner)

    def _complete(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the mean of all learners' `sent`."""
        if self._mean is None:
            if self._handle is None:  # a run begins, or goes on from a saved state
                self._handle = yield Begin(AllReduceMean(self.sent.clone()))
            self._mean = yield Wait(self._handle)
            self._handle = None
            _check(learner, self._mean)
        return self._mean

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """All replicas are equal after each step."""
        return tuple(range(learner.size))

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the parameters: they are the same everywhere."""
        yield from ()
        return learner.params.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient that is not applied yet, at the end of any step."""
        return {"sent": self.sent.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it. Its average will begin anew."""
        if state["sent"].numel() > 0:  # one learner alone has none
            self.sent = state["sent"].to(self.sent)
        self._handle = self._mean = None
        self._step = -1


def _check(learner: Learner, mean: Tensor) -> None:
    """Check that nobody had come to the end of an epoch when it sent to `mean`."""
    share = mean[learner.params.numel()]
    check_equal_steps(learner, share.view(1, 1), ended=False)


def _give(learner: Learner, mean: Tensor) -> None:
    """Make the gradients those of `mean`, of exactly the parameters that it has."""
    for parameter in learner.parameters:
        parameter.grad = None
    unpack(learner, mean)
    if all(parameter.grad is None for parameter in learner.parameters):
        learner.use_gradients([True] * len(learner.parameters))
