"""What a learner has contributed to a collective that may have to be repeated.

An all-reduce overwrites its tensor, so a learner that is to repeat it needs a copy. A
copy of the whole tensor is one of the parameters, and takes longer than the average
where the system gives memory slowly. So a large tensor is averaged slice after slice.
No learner can complete a slice before all have begun it, and each begins a slice when
it has completed the one before. So when a learner dies, the others differ by one slice
at most in what they have completed, and each needs only the last two that it has begun.
"""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from espnet_distopt.core.effects import AllReduceMean, Broadcast, GroupCollective

SLICE = 2**24
"""The least bytes of a slice. Two of them are copied at a time."""

SHARE = 2**19
"""The least bytes of a learner's share of a slice.

An all-reduce sends shares from neighbour to neighbour, and each takes at least as long
as a message: so slices grow with the number of learners.
"""


class Contribution(ABC):
    """A collective in parts, each of which this learner can contribute to again.

    Args:
        effect: the collective.

    Attributes:
        effect: the collective.
        completed: the number of parts whose results this learner has.
    """

    parts = 1

    def __init__(self, effect: GroupCollective) -> None:
        self.effect = effect
        self.completed = 0

    @abstractmethod
    def next_part(self) -> GroupCollective:
        """Return the part after those completed, and keep what is contributed."""

    @abstractmethod
    def rewind(self, completed: int) -> None:
        """Restore the tensor to when only so many parts were completed."""


class Whole(Contribution):
    """A collective in one part; what it overwrites is copied, or is kept by others."""

    def __init__(self, effect: GroupCollective) -> None:
        super().__init__(effect)
        kept = effect.kept if isinstance(effect, AllReduceMean) else None
        self._copy = kept if kept is not None else _copy(effect)

    def next_part(self) -> GroupCollective:
        """Return the collective itself."""
        return self.effect

    def rewind(self, completed: int) -> None:
        """Restore the tensor, as nothing of it may be completed."""
        self.effect.tensor.copy_(self._copy)
        self.completed = 0


class Slices(Contribution):
    """An average of all learners, slice after slice.

    Memory: two slices.

    Args:
        effect: the average.
        nbytes: the bytes of a slice, the same on all learners.
    """

    effect: AllReduceMean

    def __init__(self, effect: AllReduceMean, nbytes: int) -> None:
        super().__init__(effect)
        flat = effect.tensor.view(-1)
        self._slices = torch.split(flat, max(1, nbytes // flat.element_size()))
        self.parts = len(self._slices)
        self._begun = 0
        self._kept: list[Tensor | None] = [None, None]

    def next_part(self) -> GroupCollective:
        """Return the average of the next slice."""
        number = self.completed
        part, kept = self._slices[number], self._kept[number % 2]
        if kept is None:
            kept = self._kept[number % 2] = part.clone()
        else:
            kept[: len(part)].copy_(part)
        self._begun = number + 1
        return replace(self.effect, tensor=part)

    def rewind(self, completed: int) -> None:
        """Restore the slices that have been begun since."""
        assert self._begun - completed <= len(self._kept)
        for number in range(completed, self._begun):
            part, kept = self._slices[number], self._kept[number % 2]
            assert kept is not None
            part.copy_(kept[: len(part)])
        self.completed = self._begun = completed


def contribution(effect: GroupCollective, places: int) -> Contribution:
    """Return what a learner is about to contribute to `effect`.

    Args:
        effect: the collective.
        places: the number of learners with which the run has begun.
    """
    if isinstance(effect, AllReduceMean) and effect.kept is None:
        nbytes = max(SLICE, places * SHARE)
        whole = effect.ranks is not None or effect.tensor.nbytes <= nbytes
        if not whole and effect.tensor.is_contiguous():
            return Slices(effect, nbytes)
    return Whole(effect)


def _copy(effect: GroupCollective) -> Tensor:
    overwrites = isinstance(effect, (AllReduceMean, Broadcast))
    return effect.tensor.clone() if overwrites else effect.tensor
