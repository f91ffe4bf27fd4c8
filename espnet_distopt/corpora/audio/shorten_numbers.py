"""The numbers of a shorten stream, read bit by bit in functions that numba compiles.

A number n of width w is written as n >> w zeros, a one, and the w lowest bits of n. A
long number comes after its width, which is itself a number of width 2. A signed number
n is written as the number 2n, or as -2n - 1 if n is negative.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

_Function = TypeVar("_Function", bound=Callable[..., Any])
Words = NDArray[np.int64]
"""A stream as 32-bit words."""

_LONGEST_RUN = 1 << 20  # zeros in a row; 16-bit samples never need so many


def compiled(function: _Function) -> _Function:
    """Compile on the first call, and keep the result on disk where that is possible."""
    try:
        return cast(_Function, numba.njit(cache=True)(function))
    except RuntimeError:  # neither the package nor the user's cache is writable
        return cast(_Function, numba.njit(function))


def to_words(stream: bytes) -> tuple[Words, int]:
    """Return a stream as 32-bit words, two of padding last, and its length in bits."""
    padded = stream + bytes(8 + -len(stream) % 4)
    return np.frombuffer(padded, ">u4").astype(np.int64), 8 * len(stream)


@compiled
def read_number(words: Words, end: int, bit: int, width: int) -> tuple[int, int]:
    """Read the number at `bit`, of a width up to 32.

    Returns:
        The number, and the next bit. The number is -1 if the stream ends within it or
        it is absurdly large.
    """
    start = bit
    rest = words[bit >> 5] << (bit & 31) & 0xFFFFFFFF
    while rest == 0:
        bit = (bit | 31) + 1
        if bit >= end or bit - start > _LONGEST_RUN:
            return -1, bit
        rest = words[bit >> 5]
    while rest < 0x80000000:
        rest <<= 1
        bit += 1
    high = bit - start
    bit += 1
    if bit + width > end:
        return -1, bit
    pair = words[bit >> 5] << 32 | words[(bit >> 5) + 1]
    low = pair >> (63 - (bit & 31) - width) >> 1 & ((1 << width) - 1)
    return high << width | low, bit + width


@compiled
def read_long(words: Words, end: int, bit: int) -> tuple[int, int]:
    """Read the long number at `bit`; return it, -1 if it is bad, and the next bit."""
    width, bit = read_number(words, end, bit, 2)
    if not 0 <= width <= 32:
        return -1, bit
    return read_number(words, end, bit, width)


@compiled
def read_signed(
    words: Words, end: int, bit: int, width: int, target: NDArray[np.int64]
) -> int:
    """Fill the target with signed numbers; return the next bit, or -1 at the end."""
    for i in range(len(target)):
        number, bit = read_number(words, end, bit, width + 1)
        if number < 0:
            return -1
        target[i] = number >> 1 ^ -(number & 1)
    return bit
