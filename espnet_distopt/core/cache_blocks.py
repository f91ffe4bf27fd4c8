"""Passes over flat tensors in pieces that stay in the processor's cache.

If several operations touch the same elements, each element then comes from memory once,
and not once for each operation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 2**18
"""Number of elements in a piece: 1 MB of float32."""


def cache_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same elements of all `tensors` (P,), piece after piece.

    On a GPU there is one piece, because launching more operations costs more there.
    """
    cpu = tensors[0].device.type == "cpu"
    size = PIECE if cpu else max(1, tensors[0].numel())
    yield from zip(*[torch.split(tensor, size) for tensor in tensors], strict=True)
