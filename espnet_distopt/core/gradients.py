"""The gradients of a learner's parameters are gathered while a backward pass runs.

They are gathered bucket by bucket, from the last parameters to the first. A bucket is
gathered as soon as the pass has reached all its parameters and those of the buckets
before it; what is left is gathered when the pass ends. The gradient tensors stay the
user's own. Their values are copied to the learner's message, and the mean is copied
back into the same tensors. So a gradient that the user keeps from one backward pass is
not overwritten by the next. Gradients that come without a backward pass that can be
watched, as those of `torch.func`, are gathered when the user asks for it.

While `learner.accumulates`, a backward pass only adds to the parameters' `.grad`, as
autograd does, and the next pass that does not accumulate sends the sum.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from espnet_distopt.core.layout import Bucket, Slot
from espnet_distopt.errors import InputError


class Learner(Protocol):
    """What is asked of a `core.learner.Learner`, and what it is told."""

    names: list[str]
    parameters: list[nn.Parameter]
    slots: list[Slot]
    grads: Tensor | None
    buckets: list[Bucket]
    samples: float
    weighted: bool
    accumulates: bool
    accumulated: float | None
    used: list[bool]

    @property
    def where(self) -> str:
        """The learner's rank and step, in words."""


class BackwardWatch:
    """Gathers gradients into `learner.grads`, and says when.

    Args:
        learner: the learner, whose `grads` is a tensor already.
        done: the function to call at the end of each backward pass.
        bucket_done: the function to call with the number of each bucket but the last
            one, once it is gathered; None if nobody wants to know.
    """

    def __init__(
        self,
        learner: Learner,
        done: Callable[[], None],
        bucket_done: Callable[[int], None] | None = None,
    ) -> None:
        assert learner.grads is not None
        self._learner = learner
        self._done = done
        self._bucket_done = bucket_done
        self._buckets = [bucket.parameters for bucket in learner.buckets]
        self._bucket_of = {i: n for n, b in enumerate(self._buckets) for i in b}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._gathered = 0
        self._views = [slot.of(learner.grads) for slot in learner.slots]
        self._pass = -1
        self._versions: list[int] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(learner.parameters)
        ]

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        bucket = self._bucket_of[index]

        def hook(_: Tensor) -> None:
            # A backward pass that fails calls no callback at its end, so a new pass is
            # recognised by its number.
            current = torch._C._current_graph_task_id()
            if current < 0:
                return  # The end of a pass of compiled autograd cannot be seen.
            if current != self._pass:
                self._pass = current
                self._begin()
            self._learner.used[index] = True
            if self._learner.accumulates:
                return
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self._gather_complete()

        return hook

    def _begin(self) -> None:
        learner = self._learner
        # A gradient of earlier passes is sent with this one's: then all learners need
        # a gradient, or their optimizers would not treat the parameter alike.
        learner.used = [p.grad is not None for p in learner.parameters]
        if learner.accumulates:
            learner.accumulated = learner.samples
            return
        self._reset()
        # PyTorch has no public hook for the end of a backward pass; DDP uses this one.
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _reset(self) -> None:
        self._versions = [p._version for p in self._learner.parameters]
        self._missing = [len(bucket) for bucket in self._buckets]
        self._gathered = 0

    def gather(self) -> None:
        """Gather the gradients that the parameters have now, and call `done`."""
        self._learner.used = [p.grad is not None for p in self._learner.parameters]
        self._reset()
        self._end()

    @torch.no_grad()
    def _gather_complete(self) -> None:
        """Gather the buckets that are complete, in their order, but for the last."""
        last = len(self._buckets) - 1
        while self._gathered < last and self._missing[self._gathered] == 0:
            self._gather()

    @torch.no_grad()
    def _end(self) -> None:
        while self._gathered < len(self._buckets):
            self._gather()
        self._check(range(len(self._views)))
        self._done()
        self._learner.accumulated = None

    def _gather(self) -> None:
        """Gather the next bucket."""
        number = self._gathered
        bucket = self._buckets[number]
        self._check(bucket)
        weight = self._learner.samples if self._learner.weighted else 1.0
        full, found = [], []
        for index in bucket:
            grad, view = self._learner.parameters[index].grad, self._views[index]
            if grad is None:
                view.zero_()
            elif weight == 1:
                full.append(view)
                found.append(grad)
            else:
                torch.mul(grad, weight, out=view)
        if full:
            torch._foreach_copy_(full, found)
        self._gathered += 1
        if self._bucket_done is not None and self._gathered < len(self._buckets):
            self._bucket_done(number)

    def _check(self, indices: Iterable[int]) -> None:
        """Raise InputError for gradients that cannot be averaged."""
        learner = self._learner
        for index in indices:
            parameter = learner.parameters[index]
            grad = parameter.grad
            stepped = parameter._version != self._versions[index]
            if stepped or (grad is None and learner.used[index]):
                raise InputError(
                    f"{learner.where}: parameter '{learner.names[index]}' was updated, "
                    "or its gradient taken away, within the backward pass, before the "
                    "learners' gradients were averaged: call optimizer.step() after "
                    "the backward pass, or use an algorithm that averages models "
                    "(local_sgd, bmuf, adpsgd)"
                )
            if grad is not None and grad.layout != torch.strided:
                raise InputError(
                    f"{learner.where}: the gradient of parameter "
                    f"'{learner.names[index]}' is sparse and cannot be averaged: use "
                    "nn.Embedding(sparse=False), or an algorithm that averages models "
                    "(local_sgd, bmuf, adpsgd)"
                )


@torch.no_grad()
def give(
    views: Sequence[Tensor],
    parameters: Sequence[Tensor],
    used: Sequence[bool],
    divisor: float = 1.0,
) -> None:
    """Write gradients, divided by `divisor`, into the parameters' `.grad`, in place.

    Args:
        views: the gradient of each parameter, in its shape.
        parameters: the parameters.
        used: for each parameter, whether to give it a `.grad` if it has none.
        divisor: the number by which all gradients are divided.
    """
    full, found = [], []
    for view, parameter, use in zip(views, parameters, used, strict=True):
        if parameter.grad is None:
            if use:
                parameter.grad = view / divisor
        elif divisor == 1:
            full.append(view)
            found.append(parameter.grad.detach())
        else:
            torch.div(view, divisor, out=parameter.grad.detach())
    if full:
        torch._foreach_copy_(found, full)
