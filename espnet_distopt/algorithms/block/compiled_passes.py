"""The passes over parameters and moments at the end of a block, compiled by numba.

They compute what the functions of the same names in `block_filter`, `delayed` and
`extrapolation` do, each of an element at a time. A number that is none stays so: it is
neither larger nor smaller than a bound. `extrapolate` computes the same bits, too, so
that learners need not all have numba.
"""

import numpy as np

from espnet_distopt.core.compiled import Floats, compiled

ZERO = np.float32(0)


@compiled
def to_start(
    mean: Floats,
    theta: Floats,
    delta: Floats,
    start: Floats,
    before: float,
    eta: float,
    zeta: float,
    ahead: float,
) -> None:
    """Filter a block's update, and write the next start point to `start`.

    Args:
        mean: the mean of the parameters.
        theta: the global model, which is changed in place.
        delta: the filtered block update, which is changed in place.
        start: memory for the start point.
        before: the look-ahead of the block that ends, as a factor of `delta`.
        eta: block momentum.
        zeta: block learning rate.
        ahead: the look-ahead of the next block.
    """
    b, e = np.float32(before), np.float32(eta)
    z, a = np.float32(zeta), np.float32(ahead)
    for k in range(mean.shape[0]):
        update = mean[k] - (theta[k] + b * delta[k])
        filtered = e * delta[k] + z * update
        model = theta[k] + filtered
        delta[k] = filtered
        theta[k] = model
        start[k] = model + a * filtered


@compiled
def replace(params: Floats, snapshot: Floats, start: Floats) -> None:
    """Move `params` by `start` minus the snapshot, in place."""
    for k in range(params.shape[0]):
        params[k] = (params[k] - snapshot[k]) + start[k]


@compiled
def extrapolate(mean: Floats, start: Floats, gain: float, floor: float) -> None:
    """Overwrite a moment's start by that of the next block.

    Args:
        mean: the mean of the moment.
        start: the moment at the block's start.
        gain: kappa.
        floor: the least share of `start` that may be left; minus infinity for none.
    """
    g, f = np.float32(gain), np.float32(floor)
    bounded = f >= ZERO
    for k in range(mean.shape[0]):
        new = mean[k] + g * (mean[k] - start[k])
        if bounded and new < f * start[k]:
            new = f * start[k]
        start[k] = new


@compiled
def replace_late(
    live: Floats, new: Floats, old: Floats, share: float, positive: bool
) -> None:
    """Add `share` times (`new` - `old`) to `live`."""
    s = np.float32(share)
    for k in range(live.shape[0]):
        left = live[k] - s * old[k]
        if positive and left < ZERO:
            left = ZERO
        live[k] = left + s * new[k]
