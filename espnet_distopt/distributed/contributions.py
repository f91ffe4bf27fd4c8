"""What a learner has contributed to a collective that may have to be repeated.

An all-reduce overwrites its tensor, so a learner that is to repeat it needs a copy. A
copy of the whole tensor is one of the parameters, and takes longer than the average
where the system gives memory slowly. So a large tensor is averaged slice after slice.
No learner can complete a slice before all have begun it, and each begins a slice when
it has completed the one before. So when a learner dies, the others differ by one slice
at most in what they have completed, and each needs only the last two that it has begun.
"""

from collections.abc import Sequence
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


class Contribution:
    """A collective in parts, each of which this learner can contribute to again.

    Memory: two slices of `nbytes`; or what is overwritten, unless the algorithm keeps
    it (`AllReduceMean.kept`).

    Args:
        effect: the collective.
        nbytes: the bytes of a slice, the same on all learners; None: it is one part.

    Attributes:
        parts: the number of parts.
        completed: the number of parts whose results this learner has.
    """

    def __init__(self, effect: GroupCollective, nbytes: int | None = None) -> None:
        self.effect = effect
        self.completed = self._begun = 0
        self._slices: Sequence[Tensor] = [effect.tensor]
        if nbytes is not None:
            flat = effect.tensor.view(-1)
            self._slices = torch.split(flat, max(1, nbytes // flat.element_size()))
        self.parts = len(self._slices)
        self._overwritten = isinstance(effect, (AllReduceMean, Broadcast))
        self._given = effect.kept if isinstance(effect, AllReduceMean) else None
        self._kept: list[Tensor | None] = [self._given, None]

    def next_part(self) -> GroupCollective:
        """Return the part after those completed, and keep what is contributed."""
        number = self.completed
        part, kept = self._slices[number], self._kept[number % 2]
        if kept is None and self._overwritten:
            self._kept[number % 2] = part.clone()
        elif kept is not None and self._given is None:
            _first(kept, part).copy_(part)
        self._begun = number + 1
        return self.effect if self.parts == 1 else replace(self.effect, tensor=part)

    def rewind(self, completed: int) -> None:
        """Restore the tensor to when only so many parts were completed."""
        assert self._begun - completed <= len(self._kept)
        for number in range(completed, self._begun):
            part, kept = self._slices[number], self._kept[number % 2]
            if kept is not None:
                part.copy_(_first(kept, part))
        self.completed = self._begun = completed


def _first(kept: Tensor, part: Tensor) -> Tensor:
    """Return the memory of a slice that is as long as another one, the last."""
    return kept if kept.shape == part.shape else kept[: len(part)]


def contribution(effect: GroupCollective, places: int) -> Contribution:
    """Return what a learner is about to contribute in a run of so many places."""
    nbytes = max(SLICE, places * SHARE)
    sliced = isinstance(effect, AllReduceMean) and effect.kept is None
    if not sliced or effect.ranks is not None or effect.tensor.nbytes <= nbytes:
        return Contribution(effect)
    return Contribution(effect, nbytes if effect.tensor.is_contiguous() else None)
