"""G.711 telephone coding: mu-law and A-law, 8 bits a sample.

Both code a sample as a sign, a segment of 3 bits (the power of two of the magnitude)
and a step of 4 bits within the segment. A code that is decoded and encoded again is the
same, except for mu-law's negative zero (0x7f), which becomes the positive one (0xff).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Samples = NDArray[np.int16]

_BIAS = 132
"""Mu-law adds this to magnitudes, so that every segment starts at a power of two."""

_MU_CLIP = 32767 - _BIAS


def decode_ulaw(codes: Codes) -> Samples:
    """Expand mu-law codes, any shape, to 16 bits."""
    return _ulaw_table()[codes]


def decode_alaw(codes: Codes) -> Samples:
    """Expand A-law codes, any shape, to 16 bits."""
    return _alaw_table()[codes]


def encode_ulaw(samples: Samples) -> Codes:
    """Compress 16-bit samples, any shape; magnitudes above 32635 are clipped."""
    magnitude = np.abs(samples.astype(np.int32))
    biased = np.minimum(magnitude, _MU_CLIP) + _BIAS
    segment = _power_of_two(biased) - 7
    step = (biased >> (segment + 3)) & 0x0F
    sign = np.where(samples < 0, 0x80, 0)
    return np.asarray(~(sign | segment << 4 | step) & 0xFF, np.uint8)


def encode_alaw(samples: Samples) -> Codes:
    """Compress 16-bit samples, any shape; the magnitude of -32768 is clipped."""
    magnitude = np.minimum(np.abs(samples.astype(np.int32)), 32767)
    segment = np.maximum(_power_of_two(np.maximum(magnitude, 1)) - 7, 0)
    step = (magnitude >> (np.maximum(segment, 1) + 3)) & 0x0F
    sign = np.where(samples < 0, 0, 0x80)
    return np.asarray((sign | segment << 4 | step) ^ 0x55, np.uint8)


def _power_of_two(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the place of the highest bit that is set: 0 for 1, 7 for 128 to 255."""
    return np.frexp(values.astype(np.float64))[1] - 1


@cache
def _ulaw_table() -> Samples:
    codes = ~np.arange(256) & 0xFF
    segment, step = codes >> 4 & 7, codes & 0x0F
    # A code stands for the middle of its step, from which the bias is taken again.
    magnitude = ((step << 3) + _BIAS << segment) - _BIAS
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.int16)


@cache
def _alaw_table() -> Samples:
    codes = np.arange(256) ^ 0x55
    segment, step = codes >> 4 & 7, codes & 0x0F
    # A code stands for the middle of its step. The two lowest segments have steps of
    # the same width.
    first = (step << 4) + 8
    magnitude = np.where(segment == 0, first, first + 256 << np.maximum(segment, 1) - 1)
    return np.where(codes & 0x80, magnitude, -magnitude).astype(np.int16)
