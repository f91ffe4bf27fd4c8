"""The passes over a snapshot and its corrections, compiled by numba (see `snapshot`).

To halve a difference is exact, so that the corrections of two learners are negatives of
each other here as well.
"""

import numpy as np

from espnet_distopt.algorithms.gossip.snapshot import HALF
from espnet_distopt.core.compiled import Floats, compiled

_HALF = np.float32(HALF)


@compiled
def correct(live: Floats, difference: Floats) -> None:
    """Add half of a difference to `live`, and overwrite it by the result."""
    for k in range(live.shape[0]):
        corrected = live[k] + _HALF * difference[k]
        live[k] = corrected
        difference[k] = corrected


@compiled
def subtract(received: Floats, copy: Floats) -> None:
    """Overwrite `received` by its difference from `copy`; add half of that to `copy`.

    Two parameters with the same memory would keep the compiler from using vectors.
    """
    for k in range(received.shape[0]):
        difference = received[k] - copy[k]
        received[k] = difference
        copy[k] += _HALF * difference
