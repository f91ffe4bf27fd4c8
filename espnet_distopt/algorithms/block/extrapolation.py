"""The arithmetic of moments at the end of a block; its equations are in `moments`."""

import math

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.stochastic_rounding import to_bfloat16


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
    mean: Tensor, start: Tensor, gain: float, floor: float | None, block: int = 0
) -> None:
    """Overwrite a piece of a moment's start by that of the next block, m_init.

    All learners must get the same bits (see `moment_starts`), whether numba compiles
    their passes or not, and on any processor. So these are operations that round once
    each; `lerp` and `alpha` would fuse a product and a sum, on some processors.

    Where the start is kept in bfloat16, the result is rounded to it, stochastically, so
    that the next block starts from what is kept.

    Because E[g*g] >= 0, the second moment is at least `floor` times its start. Exact
    arithmetic respects that bound; rounding, and gradients that vanish, do not.

    Args:
        mean: mbar.
        start: m_0, which becomes m_init.
        gain: kappa.
        floor: the bound's factor; None for a moment without a bound.
        block: the number of the block, with which the rounding changes.
    """
    new = start.to(mean.dtype)  # This is `start` itself if it is not kept in bfloat16.
    bound = None if floor is None else new.mul(floor)
    if gain == 0:
        new.copy_(mean)
    else:
        torch.sub(mean, new, out=new).mul_(gain).add_(mean)
    if bound is not None:
        torch.maximum(new, bound, out=new)
    if new is not start:
        start.copy_(to_bfloat16(new, block))


def replace_late(
    live: Tensor, new: Tensor, old: Tensor, share: float, positive: bool
) -> None:
    """Add `share` times (`new` - `old`) to a piece of `live`.

    Args:
        live: the moment now, which is changed in place; it may be of higher precision.
        new: the averaged moment, which replaces the snapshot.
        old: the moment at the snapshot.
        share: the share b^j of the snapshot that is left after j updates.
        positive: whether the moment is never negative.
    """
    live.sub_(old, alpha=share)
    if positive:
        live.clamp_(min=0)  # Rounding may make it negative.
    live.add_(new.to(live.dtype), alpha=share)
