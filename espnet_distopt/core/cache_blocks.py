"""Passes over flat tensors, a piece at a time that stays in the processor's cache.

Where several operations touch the same elements, each element then comes from memory
once, not once an operation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 2**18
"""Elements: 1 MB of float32."""


def cache_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same places of all `tensors` (P,), which cover them.

    On another device than the CPU that is one piece: there launching costs more.
    """
    cpu = tensors[0].device.type == "cpu"
    size = PIECE if cpu else max(1, tensors[0].numel())
    yield from zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)
