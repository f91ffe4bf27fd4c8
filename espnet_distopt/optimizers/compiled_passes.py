"""The pass over an optimizer's moments before each step, compiled by numba.

It computes the equations of `second_moment`, one element at a time.
"""

import numpy as np

from espnet_distopt.core.compiled import Floats, compiled


@compiled
def follow(
    lent: Floats,
    squares: Floats,
    noise: Floats,
    means: Floats,
    gradients: Floats,
    unbias: float,
    spread: float,
    decay: float,
    removed: float,
    batches: int,
) -> None:
    """Bring s and v up to date, and overwrite `lent` by the v that Adam needs before.

    Args:
        lent: memory for it.
        squares: v, which is changed in place.
        noise: s, which is changed in place.
        means: Adam's first moment of the step before, without bias correction.
        gradients: the gradients of the step.
        unbias: the factor of `means` that corrects its bias.
        spread: 1 + r.
        decay: b2.
        removed: the factor of s by which v is reduced, both without bias correction.
        batches: N.
    """
    b2, fresh = np.float32(decay), np.float32(1 - decay)
    fresh_noise = np.float32((1 - decay) / spread)
    u, less, n = np.float32(unbias), np.float32(removed), np.float32(batches)
    for k in range(lent.shape[0]):
        g = gradients[k]
        deviation = g - u * means[k]
        s = b2 * noise[k] + fresh_noise * (deviation * deviation)
        v = b2 * squares[k] + fresh * (g * g)
        noise[k] = s
        squares[k] = v
        whole = v - less * s
        least = v / n
        if whole < least:
            whole = least
        lent[k] = (whole - fresh * (g * g)) / b2
