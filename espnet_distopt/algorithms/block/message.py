"""The numbers that learners average beside their parameters at the end of a block."""

from typing import NamedTuple

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.learning_rates import LearningRates
from espnet_distopt.core.learner import Learner


class Agreed(NamedTuple):
    """What all learners know of a block once they have averaged their numbers.

    Attributes:
        share_ended: the share of learners that have ended their epoch.
        tau: the mean of the learners' numbers of updates in the block.
        loaded: whether a learner's moments were loaded since its last block.
        rates: the mean learning rate of each parameter group; empty if no rule needs
            it.
        steps: the mean step count of each parameter; empty without moments.
    """

    share_ended: float
    tau: float
    loaded: bool
    rates: list[float]
    steps: list[float]


def write_message(
    learner: Learner,
    updates: int,
    ended: bool,
    loaded: bool,
    rates: LearningRates | None,
    steps: list[float],
) -> Tensor:
    """Return the numbers of one learner, (3 + G + K,) for G groups and K parameters.

    Args:
        learner: this learner.
        updates: its number of updates in the block.
        ended: whether it has no more batches in this epoch.
        loaded: whether its moments were loaded since its last block.
        rates: its learning rates; None if the rule does not follow them.
        steps: its optimizer's step count of each parameter; empty if moments are left
            alone.
    """
    numbers = [float(ended), float(updates), float(loaded)]
    numbers += rates.current() if rates else []
    numbers += steps
    return torch.tensor(numbers, dtype=torch.float64, device=learner.params.device)


def read_message(mean: Tensor, rates: LearningRates | None) -> Agreed:
    """Return what the mean of the learners' numbers says.

    Args:
        mean: the mean of their messages, (3 + G + K,).
        rates: this learner's learning rates, as it has sent them.
    """
    share_ended, tau, loaded, *others = mean.tolist()
    groups = len(rates.last) if rates else 0
    return Agreed(share_ended, tau, loaded > 0, others[:groups], others[groups:])
