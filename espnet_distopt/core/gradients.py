"""The gradients of a learner's parameters are gathered when a backward pass ends.

The gradient tensors stay the user's own. Their values are copied to the learner's
message, and the mean is copied back into the same tensors. So a gradient that the user
keeps from one backward pass is not overwritten by the next.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from espnet_distopt.errors import InputError

if TYPE_CHECKING:
    from espnet_distopt.core.learner import Learner


class BackwardWatch:
    """Gathers gradients into `learner.grads` when a backward pass ends.

    Args:
        learner: the learner, whose `grads` is a tensor already.
        done: the function to call at the end of each backward pass.
    """

    def __init__(self, learner: "Learner", done: Callable[[], None]) -> None:
        assert learner.grads is not None
        self._learner = learner
        self._done = done
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
        def hook(_: Tensor) -> None:
            # A backward pass that fails calls no callback at its end, so a new pass is
            # recognised by its number.
            current = torch._C._current_graph_task_id()
            if current != self._pass:
                self._pass = current
                self._begin()
            self._learner.used[index] = True

        return hook

    def _begin(self) -> None:
        learner = self._learner
        learner.used = [False] * len(learner.parameters)
        self._versions = [p._version for p in learner.parameters]
        # PyTorch has no public hook for the end of a backward pass; DDP uses this one.
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    @torch.no_grad()
    def _end(self) -> None:
        self._check()
        full, found = [], []
        for parameter, view in zip(self._learner.parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                full.append(view)
                found.append(parameter.grad)
        if full:
            torch._foreach_copy_(full, found)
        self._done()

    def _check(self) -> None:
        """Raise InputError for gradients that cannot be averaged."""
        learner = self._learner
        for index, parameter in enumerate(learner.parameters):
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
    views: Sequence[Tensor], parameters: Sequence[Tensor], used: Sequence[bool]
) -> None:
    """Write gradients into the parameters' `.grad`, in place.

    Args:
        views: the gradient of each parameter, in its shape.
        parameters: the parameters.
        used: for each parameter, whether to give it a `.grad` if it has none.
    """
    full, found = [], []
    for view, parameter, use in zip(views, parameters, used, strict=True):
        if parameter.grad is not None:
            full.append(view)
            found.append(parameter.grad.detach())
        elif use:
            parameter.grad = view.clone()
    if full:
        torch._foreach_copy_(found, full)
