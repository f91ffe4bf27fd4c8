"""G.711 mu-law, the coding of telephone speech: a sample in 8 bits.

A code has a sign, a segment of 3 bits (the power of two of the magnitude) and a step of
4 bits within the segment. A code that is decoded and encoded again is the same, except
for the negative zero (0x7f), which becomes the positive one (0xff).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Samples = NDArray[np.int16]

_BIAS = 132
"""It is added to magnitudes, so that every segment starts at a power of two."""

_CLIP = 32767 - _BIAS


def decode_ulaw(codes: Codes) -> Samples:
    """Expand codes, any shape, to 16 bits."""
    return _table()[codes]


def encode_ulaw(samples: Samples) -> Codes:
    """Compress 16-bit samples, any shape; magnitudes above 32635 are clipped."""
    magnitude = np.abs(samples.astype(np.int32))
    biased = np.minimum(magnitude, _CLIP) + _BIAS
    segment = np.frexp(biased.astype(np.float64))[1] - 8
    step = (biased >> (segment + 3)) & 0x0F
    sign = np.where(samples < 0, 0x80, 0)
    return np.asarray(~(sign | segment << 4 | step) & 0xFF, np.uint8)


@cache
def _table() -> Samples:
    codes = ~np.arange(256) & 0xFF
    segment, step = codes >> 4 & 7, codes & 0x0F
    # A code stands for the middle of its step, from which the bias is taken again.
    magnitude = ((step << 3) + _BIAS << segment) - _BIAS
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.int16)
