"""Buckets: parts of the gradients, in the order in which a backward pass finds them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from espnet_distopt.core.layout import Slot


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
