"""The numbers that learners average beside their parameters at the end of a block."""

from collections.abc import Sequence
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
        agreement: the product of the block's update and the filtered one before it.
        rates: the mean learning rate of each parameter group in the block; empty if no
            rule needs it.
        steps: the mean step count of each parameter; empty without moments.
        decays: the mean decays of the moments, see `Moments.numbers`; empty without
            moments, and in an average that a version without them has begun.
    """

    share_ended: float
    tau: float
    loaded: bool
    agreement: float
    rates: list[float]
    steps: list[float]
    decays: Sequence[float] = ()


def write_message(
    learner: Learner,
    updates: int,
    ended: bool,
    loaded: bool,
    agreement: float,
    rates: LearningRates | None,
    decays: list[float],
    steps: list[float],
) -> Tensor:
    """Return the numbers of one learner, (4 + G + MG + K,).

    There are G groups, M moments and K parameters.

    Args:
        learner: this learner.
        updates: its number of updates in the block.
        ended: whether it has no more batches in this epoch.
        loaded: whether its moments were loaded since its last block.
        agreement: what `BlockFilter.agreement` returns.
        rates: its learning rates, of which a new block begins; None if the rule does
            not follow them.
        decays: the decays of its moments; empty if moments are left alone.
        steps: its optimizer's step count of each parameter; empty if moments are left
            alone.
    """
    numbers = [float(ended), float(updates), float(loaded), agreement]
    numbers += rates.of_block() if rates else []
    numbers += decays + steps
    return torch.tensor(numbers, dtype=torch.float64, device=learner.params.device)


def read_message(mean: Tensor, rates: LearningRates | None, counted: int) -> Agreed:
    """Return what the mean of the learners' numbers says.

    Args:
        mean: the mean of their messages, (4 + G + MG + K,).
        rates: this learner's learning rates, as it has sent them.
        counted: K, the number of step counts that each of them has sent.
    """
    share_ended, tau, loaded, agreement, *others = mean.tolist()
    groups, decays = len(rates.last) if rates else 0, len(others) - counted
    return Agreed(
        share_ended,
        tau,
        loaded > 0,
        agreement,
        others[:groups],
        steps=others[decays:],
        decays=others[groups:decays],
    )
