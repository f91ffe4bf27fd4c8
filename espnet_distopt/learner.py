"""A learner: one replica of the model in one flat buffer, and its step counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in a flat buffer: elements [start, stop)."""

    start: int
    stop: int
    shape: torch.Size
    group: int
    """Index of the optimizer's parameter group."""

    def of(self, flat: Tensor) -> Tensor:
        """Return the view of `flat` (P,) that has the parameter's shape."""
        return flat[self.start : self.stop].view(self.shape)


class Learner:
    """A replica whose trainable parameters are views into one flat buffer.

    The order is the optimizer's: group by group, so that each parameter group is one
    contiguous slice. Parameters keep their identity (optimizer state, names and
    checkpoints are unaffected); only their storage moves.

    Attributes:
        params: (P,) all trainable parameters, P elements.
        grads: (P,) their gradients after a backward pass; None unless `watch_backward`
            was called.
        gradient_message: `grads` with room behind, see `algorithms.gradient_mean`.
        used: for each parameter, whether the last backward pass reached it.
        samples: samples in the current batch, for weighting; set by the training loop.
        steps: attempted steps. A step skipped because of a non-finite gradient is still
            an attempted one, so that learners never disagree on when a block ends.
        updates: steps that the optimizer really took.

    Args:
        model: the module that is trained.
        optimizer: any `torch.optim` optimizer over parameters of `model`.
        rank: this learner's number, 0 <= rank < size.
        size: number of learners, N.
        per_node: learners on each machine, as the launcher says; None: it does not.

    Raises:
        InputError: no trainable parameter, or more than one dtype or device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        rank: int = 0,
        size: int = 1,
        per_node: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.per_node = per_node
        self.optimizer = optimizer
        self.parameters: list[nn.Parameter] = []
        self.slots: list[Slot] = []
        self._lay_out()
        self.params = self._pack()
        self.grads: Tensor | None = None
        self.gradient_message = self.params.new_empty(0)
        self.used = [False] * len(self.parameters)
        self.samples = 1.0
        self.steps = 0
        self.updates = 0
        self._backward_pass = -1
        optimizer.register_step_post_hook(self._count_update)
        _keep_storage(model)

    def _lay_out(self) -> None:
        start = 0
        for index, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                if not parameter.requires_grad:
                    continue
                stop = start + parameter.numel()
                self.slots.append(Slot(start, stop, parameter.shape, index))
                self.parameters.append(parameter)
                start = stop
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) != 1:
            found = ", ".join(f"{d} on {v}" for d, v in sorted(kinds, key=str))
            raise InputError(
                "the optimizer's parameters must be trainable and share one dtype "
                f"and device; found: {found or 'no trainable parameter'}"
            )

    def _pack(self) -> Tensor:
        first = self.parameters[0]
        flat = torch.empty(self.slots[-1].stop, dtype=first.dtype, device=first.device)
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            view = slot.of(flat)
            view.copy_(parameter.detach())
            parameter.data = view
        return flat

    def _count_update(self, *_: Any) -> None:
        self.updates += 1

    def check_storage(self) -> None:
        """Raise RuntimeError if something moved a parameter out of the flat buffer."""
        base, size = self.params.data_ptr(), self.params.element_size()
        for index, slot in enumerate(self.slots):
            here = self.parameters[index].data_ptr()
            if slot.stop > slot.start and here != base + slot.start * size:
                raise RuntimeError(
                    f"learner {self.rank}, step {self.steps}: parameter {index} of "
                    f"shape {tuple(slot.shape)} has left the flat buffer (model.to(), "
                    "or an assignment to .data after attaching?); attach again after it"
                )

    def watch_backward(self, done: Callable[[], None]) -> None:
        """Gather gradients into `grads` and call `done` when a backward pass ends.

        From then on each parameter's `.grad` is a view into `grads`, so what `done`
        writes there is what clipping and the optimizer see. A parameter that the pass
        did not reach has zeros in `grads` and keeps its `.grad`.
        """
        tail = 2 + len(self.parameters)
        self.gradient_message = self.params.new_zeros(self.params.numel() + tail)
        self.grads = self.gradient_message[: self.params.numel()]
        for index, parameter in enumerate(self.parameters):
            hook = self._gradient_hook(index, done)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _gradient_hook(
        self, index: int, done: Callable[[], None]
    ) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert self.grads is not None
            # A pass that failed never ended: only its number tells it from the next.
            current = torch._C._current_graph_task_id()
            if current != self._backward_pass:
                self._backward_pass = current
                self.used = [False] * len(self.parameters)
                # The end of a whole backward pass has no public hook; DDP uses this.
                torch.autograd.Variable._execution_engine.queue_callback(
                    self._backward_end(done)
                )
            self.used[index] = True
            view = self.slots[index].of(self.grads)
            grad = parameter.grad
            if grad is not None and grad.data_ptr() != view.data_ptr():
                view.copy_(grad)
                parameter.grad = view

        return hook

    def _backward_end(self, done: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            for used, parameter, slot in zip(
                self.used, self.parameters, self.slots, strict=True
            ):
                if not used and parameter.grad is None and self.grads is not None:
                    slot.of(self.grads).zero_()
            done()

        return end

    def use_gradients(self, used: list[bool]) -> None:
        """Give every parameter in `used` its view of `grads` as `.grad`."""
        assert self.grads is not None
        for use, parameter, slot in zip(used, self.parameters, self.slots, strict=True):
            if use and parameter.grad is None:
                parameter.grad = slot.of(self.grads)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and counts: tensors and numbers only."""
        return {
            "params": self.params.detach().clone(),
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned, in place.

        Raises:
            InputError: the state belongs to a model of another size.
        """
        saved = state["params"].numel()
        if saved != self.params.numel():
            raise InputError(
                f"the saved learner has {saved} parameters, this model has "
                f"{self.params.numel()}; resume with the configuration it was saved by"
            )
        self.params.copy_(state["params"])
        self.steps = state["steps"]
        self.updates = state["updates"]


def _keep_storage(model: nn.Module) -> None:
    """Stop recurrent modules from moving their weights into a buffer of cuDNN's."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _do_nothing  # type: ignore[method-assign]


def _do_nothing() -> None:
    """Stand-in for `RNNBase.flatten_parameters`; a function, so that models pickle."""
