"""A part of a learner's parameters whose blocks end together, and what is known of one.

At the end of a block each learner sends some numbers beside its parameters. Their mean
is what all learners know of the block, with the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
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


class BlockSummary(NamedTuple):
    """Numbers about a block: one learner's own, or their mean over the learners.

    Attributes:
        ended: 1 if the learner has no more batches in this epoch, else 0.
        tau: the number of updates in the block.
        loaded: 1 if the learner's moments were loaded since its last block, else 0.
        agreement: what `BlockFilter.agreement` returns.
        rates: the learning rate of each parameter group in the block, (G,); empty if no
            rule needs it.
        decays: the decays of M moments (MG,), see `Moments.numbers`; empty if moments
            are left alone.
        steps: the step count of each parameter (K,); empty without moments.
    """

    ended: float
    tau: float
    loaded: float
    agreement: float
    rates: Sequence[float] = ()
    decays: Sequence[float] = ()
    steps: Sequence[float] = ()

    def message(self, device: torch.device) -> Tensor:
        """Return the numbers to be averaged, (4 + G + MG + K,), float64."""
        numbers = [self.ended, self.tau, self.loaded, self.agreement]
        numbers += [*self.rates, *self.decays, *self.steps]
        return torch.tensor(numbers, dtype=torch.float64, device=device)

    @classmethod
    def read(cls, message: Tensor, groups: int, counted: int) -> "BlockSummary":
        """Return the numbers of a message.

        Args:
            message: what `message` has returned, or the mean of several.
            groups: G, the number of learning rates.
            counted: K, the number of step counts.
        """
        ended, tau, loaded, agreement, *others = message.tolist()
        decays = len(others) - counted
        return cls(
            ended,
            tau,
            loaded,
            agreement,
            others[:groups],
            others[groups:decays],
            others[decays:],
        )


class Lead(NamedTuple):
    """How far the start of the next block is ahead of the mean of this one.

    Attributes:
        k: the number of minibatches equivalent to the way.
        strength: w_n, in [0, 1]: how far momentum has set in, see `BlockFilter`.
    """

    k: float
    strength: float


NO_LEAD = Lead(0.0, 0.0)
"""The next block starts at the mean."""
