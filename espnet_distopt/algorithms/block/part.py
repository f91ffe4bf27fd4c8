"""A part of a learner's parameters, whose blocks end together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.core.layout import Slot
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring parameters of a learner, Q elements.

    Attributes:
        rank: the learner's rank.
        optimizer: the learner's optimizer.
        place: their place in the learner's flat buffer.
        params: that part of the buffer (Q,).
        parameters: the trainable parameters, in the buffer's order.
        slots: the place of each of them in `params`.
        optimizer_loaded: functions to call when a state was loaded into the optimizer.
        updated: functions to call after each update of the optimizer.
    """

    rank: int
    optimizer: Optimizer
    place: slice
    params: Tensor
    parameters: Sequence[nn.Parameter]
    slots: Sequence[Slot]
    optimizer_loaded: list[Callable[[], None]]
    updated: list[Callable[[], None]]


def cut(learner: Learner, fragments: int) -> list[Part]:
    """Return the fragments of a learner's parameters, as equal in size as can be.

    A parameter is never divided. Each boundary is the one between two parameters that
    is nearest to where fragments of equal size would have it.

    Args:
        learner: the learner.
        fragments: their number.

    Raises:
        InputError: the model has fewer parameters.
    """
    count = len(learner.slots)
    if fragments > count:
        raise InputError(
            f"fragments: {fragments} needs as many trainable parameters at least, and "
            f"the model has {count} (a weight matrix or a bias is one)"
        )
    each = learner.params.numel() / fragments
    bounds = [0]
    for number in range(1, fragments):
        possible = range(bounds[-1] + 1, count - fragments + number + 1)
        bounds.append(min(possible, key=lambda i: _distance(learner, i, number * each)))
    ends = [*bounds[1:], count]
    return [_part(learner, *pair) for pair in zip(bounds, ends, strict=True)]


def _distance(learner: Learner, index: int, element: float) -> float:
    return abs(learner.slots[index].start - element)


def _part(learner: Learner, first: int, stop: int) -> Part:
    slots = learner.slots[first:stop]
    begin = slots[0].start
    place = slice(begin, slots[-1].stop)
    return Part(
        rank=learner.rank,
        optimizer=learner.optimizer,
        place=place,
        params=learner.params[place],
        parameters=learner.parameters[first:stop],
        slots=[replace(s, start=s.start - begin, stop=s.stop - begin) for s in slots],
        optimizer_loaded=learner.optimizer_loaded,
        updated=learner.updated,
    )
