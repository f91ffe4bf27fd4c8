"""Delay-by-one (D1D): one all-reduce a step, which runs beside the next step.

IBM's IEEE/ACM TASLP 2021 article (arXiv 2110.11199) names D1D in its abstract. Its
exact published form could not be read, so both possible readings are here, under two
names:

    d1d_model   x_{k+1}^i = (1/N) sum_j x_k^j - u_i(x_k^i)
    d1d_grad    x_{k+1} = x_k - lr sum_i w_i g_i(x_{k-1}) / sum_i w_i

`d1d_model` averages the models: it is `dpsgd` on the complete graph. `d1d_grad`
averages the gradients, weighted by samples as in `allreduce`, and all its replicas stay
equal, bit for bit. Both are fastest if all learners are equally fast; one slow learner
slows all others. Both are stable on a curvature of h for lr h < 1 (plain SGD: 2). With
one learner alone there is nothing to average: its optimizer trains without a delay.

Cost: 2n(N-1)/N bytes a step for n bytes of parameters, beside the computation, and the
same once more at an epoch's end. Memory of `d1d_grad`: 3P elements, for the message,
its copy in flight, and a copy for a run that is resumed.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.synchronous.allreduce import (
    numbers_of,
    pack,
    unpack,
)
from espnet_distopt.algorithms.synchronous.dpsgd import (
    Dpsgd,
    DpsgdConfig,
    check_equal_steps,
)
from espnet_distopt.core.effects import AllReduceMean, Begin, Effect, Program, Wait
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class D1dModelConfig:
    """Options of `d1d_model`.

    Attributes:
        second_moment: consistent corrects Adam's second moment, which is that of this
            learner's own batches, to that of all learners' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    second_moment: Literal["consistent", "local"] = "consistent"


class D1dModel(Dpsgd):
    """Delay-by-one of models, one of two readings of an unknown published form."""

    def __init__(self, config: D1dModelConfig, learner: Learner) -> None:
        moment = config.second_moment
        complete = DpsgdConfig(topology="complete", second_moment=moment)
        super().__init__(complete, learner)


@dataclass(frozen=True, kw_only=True)
class D1dGradConfig:
    """`d1d_grad` has no options."""


class D1dGrad(Algorithm):
    """Delay-by-one of gradients, one of two readings of an unknown published form.

    In the first step the gradient of every parameter is zero: the model changes by
    weight decay only, and Adam counts a step. Of the backward passes of a step one is
    averaged, which comes last (`Session.no_sync`). When a GradScaler changes its
    scale, the gradient of the step before is divided by the new scale, once.

    Attributes:
        config: the options.
        sent: this learner's message of the last step, which the all-reduce in flight
            sends; before the first step it counts no samples.
    """

    wants_gradients = True
    equal_steps = True

    def __init__(self, config: D1dGradConfig, learner: Learner) -> None:
        learner.reserve(numbers_of(learner))
        self.config = config
        if learner.size > 1:
            self.advice = (
                "gradients are those of the step before, so that with momentum or Adam "
                "the largest stable learning rate is far below DDP's; d1d_model, as "
                "fast, keeps DDP's rate"
            )
        self.sent = torch.zeros_like(learner.gradient_buffer)
        self._handle: Any = None
        self._mean: Tensor | None = None
        self._step = -1

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters, with no gradient to apply."""
        yield from super().start(learner)
        self.sent = torch.zeros_like(learner.gradient_buffer)

    def after_backward(self, learner: Learner) -> Program:
        """Use the mean gradient of the last step; begin to average this step's.

        Raises:
            InputError: this is not the first backward pass of the step.
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size == 1:
            return
        if self._step == learner.steps:
            raise InputError(
                f"learner {learner.rank}, step {learner.steps}: d1d_grad takes one "
                "backward pass a step: have all others of an update within "
                "session.no_sync(), or use an algorithm that averages each (d1d_model, "
                "allreduce)"
            )
        self._step = learner.steps
        mean = yield from self._complete(learner)
        self.sent.copy_(pack(learner))
        _set_gradients(learner, mean)
        self._mean = None
        # The mean has been used, and its memory is free for the next one.
        self._handle = yield Begin(AllReduceMean(mean.copy_(self.sent)))

    def finish(self, learner: Learner) -> Program:
        """Wait for the last step's gradients, which the next epoch's first step uses.

        Raises:
            UnequalStepsError: another learner has not come to the end of its epoch.
        """
        if learner.size == 1:
            return
        yield from self._complete(learner)
        mean = yield AllReduceMean(pack(learner, ended=True))
        unpack(learner, mean, ended=True)

    def next_stop(self, learner: Learner) -> int:
        """Return the step after the next one.

        Another learner may be a step ahead, because it waits for this learner's message
        one step later.
        """
        return learner.steps + 2

    def pause(self, learner: Learner) -> Program:
        """Wait for the gradients in flight; the resumed run sends them once more."""
        if learner.size > 1:
            yield from self._complete(learner)

    def _complete(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the mean of all learners' `sent`."""
        if self._mean is None:
            if self._handle is None:  # A run begins, or was resumed.
                self._handle = yield Begin(AllReduceMean(self.sent.clone()))
            self._mean = yield Wait(self._handle)
            self._handle = None
            check_equal_steps(learner, self._mean[:1].view(1, 1), ended=0)
        return self._mean

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """All replicas are equal after each step."""
        return tuple(range(learner.size))

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient that has not been applied yet, at the end of any step."""
        return {"sent": self.sent.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned; its average begins once more."""
        if state["sent"].numel() > 0:  # One learner alone sends no message.
            self.sent = state["sent"].to(self.sent)
        self._handle = self._mean = None
        self._step = -1


def _set_gradients(learner: Learner, mean: Tensor) -> None:
    """Give the mean gradient to the parameters that any learner's pass has reached.

    If no pass has reached any parameter, all get their gradient, which is zero. All
    other parameters have no `.grad` afterwards.
    """
    for parameter in learner.parameters:
        parameter.grad = None
    unpack(learner, mean)
    if all(parameter.grad is None for parameter in learner.parameters):
        learner.use_gradients([True] * len(learner.parameters))
