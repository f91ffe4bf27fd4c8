"""Rounding to bfloat16 that loses nothing in the mean.

A number between two neighbours in bfloat16 goes to the upper one with a probability
that is its distance from the lower one, as a share of the gap. A moving average that
changes by less than half a gap in each block would never move if it were rounded to
nearest; rounded so, it moves as far as it should, on average.

The random numbers are a hash of the bits that are rounded and of a salt. So all
learners that round the same bits get the same result, and none of them draws numbers,
which takes several times as long as the rest.
"""

import torch
from torch import Tensor

_LOW = 0xFFFF
"""The bits of float32 that bfloat16 does not have."""

_ODD = 0x2545F491
"""A multiplier whose products' upper bits depend on all bits below them."""


def to_bfloat16(values: Tensor, salt: int) -> Tensor:
    """Return `values` (Q,) rounded to numbers of bfloat16, in float32.

    Infinite values stay infinite, and those that are no numbers stay so.

    Args:
        values: numbers, which are rounded to float32 first if they are wider.
        salt: a number that changes from one rounding of a tensor to the next.
    """
    bits = values.to(torch.float32, copy=True).view(torch.int32)
    hashed = bits.mul(_signed((2 * salt + 1) * _ODD))
    hashed.bitwise_right_shift_(16).bitwise_and_(_LOW)
    rounded = bits.add_(hashed).bitwise_and_(~_LOW).view(torch.float32)
    # The largest patterns of bits would overflow into numbers, and one of them is the
    # NaN that GPUs compute.
    return rounded.masked_fill_(values.isnan(), torch.nan)


def _signed(number: int) -> int:
    """Return the lowest 32 bits of a number, as a signed one."""
    return (number + 2**31) % 2**32 - 2**31
