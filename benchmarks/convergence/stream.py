"""The module has an endless sequence of samples, so that no model sees one twice.

Sample n is a pure function of the seed and n. So N learners with b samples each see the
same samples as one learner with N b samples, and all methods see the same ones.
"""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Samples = tuple[Tensor, ...]
"""Tensors whose first dimension is that of the samples: features and labels."""

Draw = Callable[[np.random.Generator, int], Samples]
"""Draws a number of samples by a generator of random numbers."""

BLOCK = 1024
"""Samples that are drawn at once: the cost of a draw is shared by all of them."""
KEPT = 32
"""Blocks in memory. Asynchronous learners are at different steps, and a block that a
slow learner reads after all others must still be there, or be drawn again."""


class Stream:
    """An endless sequence of samples.

    Sample n is in row n % BLOCK of block n // BLOCK. A block has random numbers of its
    own, by the seed and its number.

    Args:
        draw: the function that draws the samples of a block.
        seed: the seed of all samples, not negative.
    """

    def __init__(self, draw: Draw, seed: int) -> None:
        self._draw = draw
        self._seed = seed
        self._blocks: OrderedDict[int, Samples] = OrderedDict()

    def read(self, first: int, count: int) -> Samples:
        """Return `count` samples, from the sample with number `first` on."""
        parts = []
        while count > 0:
            number, row = divmod(first, BLOCK)
            taken = min(count, BLOCK - row)
            parts.append([x[row : row + taken] for x in self._block(number)])
            first, count = first + taken, count - taken
        if len(parts) == 1:
            return tuple(parts[0])
        return tuple(torch.cat(same) for same in zip(*parts, strict=True))

    def _block(self, number: int) -> Samples:
        if number not in self._blocks:
            # A list of numbers is a seed without collisions, unlike their sum.
            rng = np.random.default_rng([self._seed, number])
            self._blocks[number] = self._draw(rng, BLOCK)
            if len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]
