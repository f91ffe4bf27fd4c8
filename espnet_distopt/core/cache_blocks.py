"""Passes over flat tensors in pieces that stay in the processor's cache.

If several operations touch the same elements, each element then comes from memory once,
and not once for each operation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 2**17
"""Number of elements in a piece: 512 KB of float32."""


def cache_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same elements of all `tensors` (P,), piece after piece.

    On a GPU there is one piece, because launching more operations costs more there.
    """
    size = _piece(tensors[0])
    yield from zip(*[torch.split(tensor, size) for tensor in tensors], strict=True)


def cache_slices(tensor: Tensor, within: slice = slice(None)) -> Iterator[slice]:
    """Yield the places of such pieces of `tensor` (P,), one after the other.

    Args:
        tensor: the tensor.
        within: the elements that are asked for.
    """
    first, last, _ = within.indices(tensor.numel())
    size = _piece(tensor)
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def room_for_piece(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for a piece of `tensor` (P,), with any values.

    A pass that computes something of each piece keeps it there. If it allocated memory
    for each piece, the system would map and zero much of it anew.

    Args:
        tensor: the tensor of the pieces.
        dtype: the type of what is computed; None is that of `tensor`.
    """
    length = min(_piece(tensor), tensor.numel())
    return torch.empty(length, dtype=dtype or tensor.dtype, device=tensor.device)


def _piece(tensor: Tensor) -> int:
    return PIECE if tensor.device.type == "cpu" else max(1, tensor.numel())
