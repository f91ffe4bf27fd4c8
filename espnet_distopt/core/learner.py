"""A learner: one replica of the model, the optimizer that trains it, and its counts.

All trainable parameters of a learner lie side by side in one flat buffer. So an
all-reduce of the model is a collective of one tensor, and the mean of two replicas is
one pass over memory. The learner counts the steps that were attempted, and beside them
the updates that its optimizer really made.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.core.gradients import BackwardWatch, give
from espnet_distopt.core.layout import Bucket, Slot, cut, lay_out
from espnet_distopt.core.membership import Members
from espnet_distopt.core.memory import own_storage
from espnet_distopt.core.recurrent import give_back, keep_storage
from espnet_distopt.errors import InputError

__all__ = ["Learner", "Slot"]


class Learner:
    """One replica of the model; its trainable parameters are views of a flat buffer.

    The buffer has the order of the optimizer, group by group, so that each parameter
    group is one contiguous slice. Parameters stay the same objects: the optimizer's
    state, the names and the checkpoints are unaffected, and only the storage moves.

    Attributes:
        rank: this learner's number, 0 <= rank < size.
        size: number of places, N; a place whose learner has died counts.
        members: the learners that live.
        per_node: number of learners on each node, or None if it is not known.
        optimizer: the optimizer that trains this replica.
        names: names of the trainable parameters in the model, in the buffer's order.
        parameters: the trainable parameters, in the same order.
        slots: the place of each parameter in the buffer, in the same order.
        params: the flat buffer (P,) of all trainable parameters, P elements.
        grads: the gradients (P,) of the last backward pass; None unless
            `watch_backward` was called.
        gradient_buffer: tensor (R + P,) that ends with `grads`. The R elements before
            them belong to the algorithm, which asks for them by `reserve` and sends
            them with the gradients. It is empty until `watch_backward`.
        buckets: the parts of `gradient_buffer`, in the order in which a backward pass
            completes them.
        used: for each parameter, whether the last backward pass has reached it, or has
            found a gradient of earlier passes.
        samples: number of samples in the current batch, and in those before it whose
            gradients were only accumulated. Gradients may be weighted by it; the
            training loop sets it before the backward pass.
        accumulates: whether backward passes only accumulate gradients for now, and
            nobody is told of them.
        accumulated: `samples` of the last pass that did, until one follows that does
            not; None after that.
        weighted: whether `grads` are the gradients times `samples`.
        steps: number of attempted steps. A step that was skipped because of a
            non-finite gradient is still an attempted one, so that learners never
            disagree on when a block ends.
        updates: number of updates: steps that the optimizer really took, and updates
            that the session has found made without the optimizer's `step`.
        stepped: whether the optimizer has taken or skipped a step, see `take_stepped`.
        optimizer_loaded: functions to call when a state was loaded into the optimizer.
        updated: functions to call after each step that the optimizer really took.

    Raises:
        InputError: there is no trainable parameter, or they have several dtypes or
            devices, or one shares its memory with another tensor.
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
        self.members = Members.everybody(size)
        self.per_node = per_node
        self.optimizer = optimizer
        named, self.slots = lay_out(model, optimizer)
        self.names, self.parameters = list(named), list(named.values())
        self.params = self._pack()
        self._addresses = [p.data_ptr() for p in self.parameters]
        self.grads: Tensor | None = None
        self.gradient_buffer = self.params.new_empty(0)
        self.buckets: list[Bucket] = []
        self._reserved: tuple[int, int | None, int | None] = 0, None, None
        self.weighted = False
        self.used = [False] * len(self.parameters)
        self.samples = 1.0
        self.accumulates = False
        self.accumulated: float | None = None
        self.steps = 0
        self.updates = 0
        self.stepped = False
        self.optimizer_loaded: list[Callable[[], None]] = []
        self.updated: list[Callable[[], None]] = []
        self._watch: BackwardWatch | None = None
        self._stepping = 0
        self._handles = [
            optimizer.register_step_pre_hook(self._begin_step),
            optimizer.register_step_post_hook(self._count_update),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        self._recurrent = keep_storage(model)

    @property
    def where(self) -> str:
        """The learner's rank and step, in words, for messages."""
        return f"learner {self.rank}, step {self.steps}"

    def _pack(self) -> Tensor:
        first = self.parameters[0]
        flat = torch.empty(self.slots[-1].stop, dtype=first.dtype, device=first.device)
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            view = slot.of(flat)
            view.copy_(parameter.detach())
            parameter.data = view
        return flat

    def _begin_step(self, *_: Any) -> None:
        self._stepping += 1
        if any(p.grad is not None and p.grad.is_sparse for p in self.parameters):
            self._check_sparse()

    def _check_sparse(self) -> None:
        """Refuse gradients that are sparse in all dimensions.

        PyTorch 2.13 adds the storage's offset twice when it adds one to a
        view: a parameter in the flat buffer would stay as it is, and memory behind it
        would be overwritten. An embedding's gradient has dense rows, and is right.
        """
        for name, parameter in zip(self.names, self.parameters, strict=True):
            grad = parameter.grad
            if grad is not None and grad.is_sparse and grad.dense_dim() == 0:
                raise InputError(
                    f"{self.where}: the gradient of parameter '{name}' is sparse in "
                    "all its dimensions, and PyTorch cannot add it to a view: use "
                    "gradient.to_dense(), or to_sparse(1) where rows are sparse"
                )

    def _count_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Count an update, unless a fused optimizer has found infinite gradients.

        A class whose step calls that of its base class has one update in both.
        """
        self._stepping -= 1
        if self._stepping > 0:
            return
        self._stepping = 0  # It is below if the session began within the step.
        self.stepped = True
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not float(found_inf):
            self.updates += 1
            for call in self.updated:
                call()

    def take_stepped(self) -> bool:
        """Return whether the optimizer has taken or skipped a step since the last call.

        A step that has failed midway is forgotten.
        """
        stepped, self.stepped, self._stepping = self.stepped, False, 0
        return stepped

    def _after_load(self, _: Optimizer) -> None:
        for call in self.optimizer_loaded:
            call()

    def forget_algorithm(self) -> None:
        """Call no functions any more: another algorithm begins, with its own."""
        self.optimizer_loaded.clear()
        self.updated.clear()

    def release(self) -> None:
        """Remove all hooks, and give each parameter storage of its own.

        The gradient and the optimizer's state get storage of their own as well, because
        they may be views of flat buffers, too.
        """
        self.forget_algorithm()
        if self._watch is not None:
            self._watch.remove()
            self._watch = None  # It is in a cycle with the learner.
        for handle in self._handles:
            handle.remove()
        give_back(self._recurrent)
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
            if parameter.grad is not None:
                own_storage([parameter.grad])
            state = self.optimizer.state.get(parameter, {})
            own_storage(v for v in state.values() if isinstance(v, Tensor))

    def begin_batch(self, samples: float) -> None:
        """Count the samples of a batch, and of those whose gradients it is added to.

        Raises:
            InputError: the parameters are in float16, by which gradients times samples
                soon become infinite.
        """
        if self.weighted and samples != 1 and self.params.dtype == torch.float16:
            raise InputError(
                f"{self.where}: gradients in float16 cannot be weighed by {samples:g} "
                "samples: keep float32 parameters and use autocast, or leave out "
                "begin_batch"
            )
        if self.accumulated is not None and self._cleared():
            self.accumulated = None
        self.samples = (self.accumulated or 0.0) + samples

    def _cleared(self) -> bool:
        return all(parameter.grad is None for parameter in self.parameters)

    def check_storage(self) -> None:
        """Raise InputError if a parameter has been moved out of the flat buffer."""
        if [p.data_ptr() for p in self.parameters] == self._addresses:
            return
        for index, parameter in enumerate(self.parameters):
            slot = self.slots[index]
            moved = parameter.data_ptr() != self._addresses[index]
            if moved and slot.stop > slot.start:
                raise InputError(
                    f"{self.where}: parameter '{self.names[index]}' of shape "
                    f"{tuple(slot.shape)} has left the flat buffer (model.to(), or an "
                    "assignment to .data while the session is open?): leave the "
                    "session and begin a new one after it"
                )

    def reserve(
        self, elements: int, first: int | None = None, bucket: int | None = None
    ) -> None:
        """Ask for weighted gradients and room before them, before `watch_backward`.

        An algorithm that is built once more asks for the same again.

        Args:
            elements: number of elements before `grads`.
            first: the bytes at which the first bucket is full; None makes one bucket.
            bucket: the bytes at which any other one is.
        """
        assert self.grads is None or (elements, first, bucket) == self._reserved
        self._reserved = elements, first, bucket
        self.weighted = True

    def watch_backward(
        self,
        done: Callable[[], None],
        bucket_done: Callable[[int], None] | None = None,
        factor: float = 1.0,
    ) -> None:
        """Have each backward pass gather its gradients into `grads` and call `done`.

        A parameter without `.grad` has zeros in `grads`. What `done` writes to `grads`
        reaches gradient clipping and the optimizer through `use_gradients`.

        Args:
            done: the function to call at the end of each backward pass.
            bucket_done: the function to call with the number of a bucket whose
                gradients are gathered. It is called within the backward pass as soon as
                this and all earlier buckets are complete, in their order, and for each
                bucket but the last one, of which `done` tells.
            factor: by how much the gradients count as larger than they are; a
                simulation may stand for a larger model.
        """
        size = self.params.numel()
        room, *full = self._reserved
        each = factor * self.params.element_size()
        first, other = (math.inf if f is None else f / each for f in full)
        self.buckets = cut(self.slots, room, first, other)
        self.gradient_buffer = self.params.new_zeros(room + size)
        self.grads = self.gradient_buffer[room:]
        self._watch = BackwardWatch(self, done, bucket_done)

    def gather_gradients(self) -> None:
        """Gather the present gradients, as a backward pass does at its end."""
        if self._watch is not None:
            self._watch.gather()

    def use_gradients(self, used: list[bool], divisor: float = 1.0) -> None:
        """Write `grads`, divided by `divisor`, into the parameters' `.grad`.

        Args:
            used: for each parameter, whether to give it a `.grad` if it has none.
            divisor: the number by which all gradients are divided.
        """
        assert self.grads is not None
        views = [slot.of(self.grads) for slot in self.slots]
        give(views, self.parameters, used, divisor)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and the counts, as tensors and numbers only."""
        return {
            "params": self.params.detach().clone(),
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned, in place.

        Raises:
            InputError: the state is of a model with another number of parameters.
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
