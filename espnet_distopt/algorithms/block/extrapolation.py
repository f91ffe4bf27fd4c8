"""The arithmetic of moments at the end of a block; its equations are in `moments`."""

import math

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.stochastic_rounding import to_bfloat16
from espnet_distopt.core.cache_blocks import cache_blocks


def extrapolation_gain(decay: float, tau: float, k: float) -> float:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau), computed without cancellation.

    As the decay tends to 1, kappa tends to k / tau, by which the parameters are
    extrapolated.

    Args:
        decay: the moment's decay b, in [0, 1].
        tau: number of updates in the block.
        k: equivalent minibatches between the mean and the next start point.
    """
    if tau <= 0 or k <= 0 or decay <= 0:
        return 0.0
    if decay == 1:
        return k / tau
    log = math.log(decay)
    return math.exp(tau * log) * math.expm1(k * log) / math.expm1(tau * log)


def extrapolate(
    moment: Tensor, start: Tensor, gain: float, floor: float | None, block: int = 0
) -> None:
    """Extrapolate a moment in place from its start, and copy the result to the start.

    Where the start is kept in bfloat16, the result is rounded to it, stochastically, so
    that the next block starts from what is kept.

    Because E[g*g] >= 0, the second moment is at least `floor` times its start. Exact
    arithmetic respects that bound; rounding, and gradients that vanish, do not.

    Args:
        moment: mbar, which becomes m_init.
        start: m_0, which becomes m_init as well, for the next block.
        gain: kappa.
        floor: the bound's factor; None for a moment without a bound.
        block: the number of the block, with which the rounding changes.
    """
    rounded = start.dtype != moment.dtype
    for m, s in cache_blocks(moment, start):
        before = s.to(m.dtype)
        if gain != 0:
            m.mul_(1 + gain).sub_(before, alpha=gain)
        if floor is not None:
            torch.maximum(m, before.mul_(floor), out=m)
        if rounded:
            m.copy_(to_bfloat16(m, block))
        s.copy_(m)


def replace_late(
    live: Tensor, new: Tensor, old: Tensor, share: float, positive: bool
) -> None:
    """Add `share` times (`new` - `old`) to `live`.

    Args:
        live: the moment now, which is changed in place.
        new: the averaged moment, which replaces the snapshot.
        old: the moment at the snapshot.
        share: the share b^j of the snapshot that is left after j updates.
        positive: whether the moment is never negative.
    """
    for moment, n, o in cache_blocks(live, new, old):
        moment.sub_(o, alpha=share)
        if positive:
            moment.clamp_(min=0)  # Rounding may make it negative.
        moment.add_(n, alpha=share)
