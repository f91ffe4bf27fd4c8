"""The layout of one flat buffer: the place of each trainable parameter, and buckets.

Parameters lie side by side in the order of the optimizer, group by group. Parameters
that share memory are refused, because in the flat buffer each would get its own. Of the
gradients, which lie alike, buckets are the parts in which a backward pass finds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.core.memory import is_dense, overlaps_itself, share_memory
from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class Slot:
    """The place of one parameter in a flat buffer: elements [start, stop).

    Attributes:
        start: the parameter's first element in the buffer.
        stop: the element behind its last one.
        shape: the parameter's shape.
        group: index of its parameter group in the optimizer.
    """

    start: int
    stop: int
    shape: torch.Size
    group: int

    def of(self, flat: Tensor) -> Tensor:
        """Return the view of `flat` (P,) that has the parameter's shape."""
        return flat[self.start : self.stop].view(self.shape)


def lay_out(
    model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, nn.Parameter], list[Slot]]:
    """Return the trainable parameters of `optimizer` by name, and their slots.

    The order is that of the optimizer, group by group. A parameter that does not belong
    to the model is named by its number in the optimizer.

    Raises:
        InputError: there is no trainable parameter, or they are complex, or have
            several dtypes or devices; one stands in the optimizer twice; or one shares
            its memory with another tensor.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    parameters: dict[str, nn.Parameter] = {}
    slots: list[Slot] = []
    start = 0
    for index, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            name = names.get(id(parameter), f"number {number} of group {index}")
            if name in parameters:
                raise InputError(f"the optimizer has parameter '{name}' more than once")
            parameters[name] = parameter
            stop = start + parameter.numel()
            slots.append(Slot(start, stop, parameter.shape, index))
            start = stop
    _check_kinds(parameters)
    _check_memory(model, parameters)
    return parameters, slots


def _check_kinds(parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise InputError(
                f"parameter '{name}' is complex, and a session trains real ones: keep "
                "its real and imaginary parts in a parameter of (..., 2), as "
                "torch.view_as_real gives them, and use torch.view_as_complex of it in "
                "forward()"
            )
    kinds = {(p.dtype, p.device) for p in parameters.values()}
    if len(kinds) != 1:
        found = ", ".join(f"{d} on {v}" for d, v in sorted(kinds, key=str))
        raise InputError(
            "the optimizer's parameters must be trainable and share one dtype "
            f"and device; found: {found or 'no trainable parameter'}"
        )


def _check_memory(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise InputError if a parameter shares memory with another tensor.

    In the flat buffer it would get its own memory: the two would no longer be tied, and
    no error would say so.
    """
    for name, parameter in parameters.items():
        if overlaps_itself(parameter):
            raise InputError(
                f"elements of parameter '{name}' share memory (it was expanded?): "
                "make it of its own elements (parameter.data.clone())"
            )
    trained = {id(p) for p in parameters.values()}
    others = [*model.named_parameters(), *model.named_buffers()]
    dense = {n: t for n, t in others if id(t) not in trained and is_dense(t)}
    for first, second in share_memory(parameters, dense):
        raise InputError(
            f"'{first}' and '{second}' share memory and are not the same parameter: "
            "tie the modules' attribute instead (b.weight = a.weight), or clone one"
        )


@dataclass(frozen=True)
class Bucket:
    """Neighbouring parameters whose gradients travel together.

    Attributes:
        parameters: the numbers of the parameters.
        start: the first element of the bucket in `Learner.gradient_buffer`.
        stop: the element behind the last one.
    """

    parameters: range
    start: int
    stop: int

    def of(self, buffer: Tensor) -> Tensor:
        """Return the bucket's part of the buffer."""
        return buffer[self.start : self.stop]


def cut(slots: Sequence[Slot], room: int, first: float, other: float) -> list[Bucket]:
    """Return the buckets of all parameters, from the last parameter to the first.

    The last bucket has the elements before the gradients, too. A parameter is never
    divided.

    Args:
        slots: the places of the parameters among the gradients.
        room: the number of elements before the gradients.
        first: the number of elements at which the first bucket is full.
        other: the number of elements at which any other one is.
    """
    buckets: list[Bucket] = []
    end = len(slots)
    for begin in reversed(range(len(slots))):
        length = slots[end - 1].stop - slots[begin].start
        if begin > 0 and length < (other if buckets else first):
            continue
        start = room + slots[begin].start if begin > 0 else 0
        buckets.append(Bucket(range(begin, end), start, room + slots[end - 1].stop))
        end = begin
    return buckets
