"""Values in few bits: how compressed averages write the elements that they send.

The values (C, k) are those of C chunks, k of each. A quantizer writes a few bfloat16
numbers for each chunk, and then a code for each value.

    bits  numbers of a chunk                  a value v becomes
    8     its largest |v|                     one of 255 multiples of a 127th of it
    2     the means of the |v| up to their    the mean of its half, with the sign of v
          mean, and of those above it

In two bits a few outliers do not coarsen the rest of their chunk, because they have a
mean of their own. The mean square error is the variance of the |v| about the means of
the two halves, so that it is never larger than that of sending nothing.

Source: SparseLoCo (arXiv 2508.15706) sends 2 bits and finds them enough; how the four
values are chosen here is our own.
"""

from typing import Protocol

import torch
from torch import Tensor

_NUMBER = torch.bfloat16
_LARGEST = 127
_PLACES = (0, 2, 4, 6)
"""Where the four codes of two bits begin in a byte."""


class Quantizer(Protocol):
    """Writes values as bytes, and reads them."""

    def nbytes(self, kept: int) -> float:
        """Return the bytes of a chunk of which `kept` values are sent."""
        ...

    def write(self, values: Tensor) -> Tensor:
        """Return the bytes of `values` (C, k), in one vector.

        A chunk with a value that is not finite is read as one that is not finite.
        """
        ...

    def read(self, message: Tensor, like: Tensor) -> Tensor:
        """Return the values in the shape and the dtype of `like` (C, k)."""
        ...


class EightBits:
    """Steps of a 127th of the largest value of a chunk."""

    def nbytes(self, kept: int) -> float:
        """Return the bytes of a chunk: its largest value, and one for each code."""
        return 2 + kept

    def write(self, values: Tensor) -> Tensor:
        """Return the largest values of all chunks, and then the codes."""
        largest = values.abs().amax(1, keepdim=True).to(_NUMBER)
        steps = largest.to(values.dtype) / _LARGEST
        codes = (values / steps).nan_to_num_(0.0).round_()  # Of zeros it is 0 / 0.
        codes = codes.clamp_(-_LARGEST, _LARGEST).to(torch.int8)
        parts = largest.view(torch.uint8), codes.view(torch.uint8)
        return torch.cat([part.reshape(-1) for part in parts])

    def read(self, message: Tensor, like: Tensor) -> Tensor:
        """Return the values in the shape and the dtype of `like`."""
        largest, codes = _split(message, len(like))
        steps = largest.to(like.dtype) / _LARGEST
        return codes.view(torch.int8).view(like.shape).to(like.dtype).mul_(steps)


class TwoBits:
    """The sign of a value, and one of two means of its chunk."""

    def nbytes(self, kept: int) -> float:
        """Return the bytes of a chunk: two means, and a quarter for each code."""
        return 4 + kept / 4

    def write(self, values: Tensor) -> Tensor:
        """Return the two means of all chunks, and then the codes, four in a byte."""
        sizes = values.abs()
        above = sizes > sizes.mean(1, keepdim=True)
        means = torch.cat([_mean(sizes, ~above), _mean(sizes, above)], 1).to(_NUMBER)
        codes = (above + 2 * (values < 0)).to(torch.uint8).reshape(-1)
        missing = -len(codes) % len(_PLACES)
        fours = torch.nn.functional.pad(codes, (0, missing)).view(-1, len(_PLACES))
        packed = (fours << fours.new_tensor(_PLACES)).sum(1, dtype=torch.uint8)
        return torch.cat([means.view(torch.uint8).reshape(-1), packed])

    def read(self, message: Tensor, like: Tensor) -> Tensor:
        """Return the values in the shape and the dtype of `like`."""
        means, packed = _split(message, len(like), numbers=2)
        codes = packed[:, None] >> packed.new_tensor(_PLACES) & 3
        codes = codes.view(-1)[: like.numel()].view(like.shape)
        values = torch.cat([means, -means], 1).to(like.dtype)
        return values.gather(1, codes.long())


QUANTIZERS: dict[int, Quantizer] = {8: EightBits(), 2: TwoBits()}
"""The quantizers by the bits of a value."""


def _split(message: Tensor, chunks: int, numbers: int = 1) -> tuple[Tensor, Tensor]:
    """Return the numbers of all chunks (C, `numbers`), and the bytes of the codes."""
    count = chunks * numbers * _NUMBER.itemsize
    # A message may begin at an odd byte of what was gathered, hence a copy.
    head, codes = message[:count].clone(), message[count:]
    return head.view(_NUMBER).view(chunks, numbers), codes


def _mean(sizes: Tensor, among: Tensor) -> Tensor:
    """Return the mean of each row (C, 1) over some of its elements; 0 if over none."""
    total = sizes.where(among, 0.0).sum(1, keepdim=True)
    return total / among.sum(1, keepdim=True).clamp_(min=1)
