"""Chunks: the columns of N vectors' shards, in parts that fit in a cache.

The shards of N vectors are an array (N, S), with a row for each vector. Adasum works
through its columns chunk by chunk. A chunk holds a part of one long parameter tensor,
whose Gram matrix is one matrix product; or several short tensors, whose products are
summed by segments. So the number of operations grows with the number of elements, and
not with that of tensors.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet_distopt.core.learner import Slot

CHUNK = 1 << 20
"""Bytes of a chunk in float64, which a second-level cache holds."""

GPU_CHUNK = 1 << 27
"""The same on a GPU, where each chunk costs the launch of some operations."""

SHORT = 1 << 12
"""A parameter tensor with fewer elements than this is short and shares a chunk."""


@dataclass(frozen=True)
class Chunk:
    """The columns [start, stop) of an array (N, S).

    Attributes:
        start: the first column.
        stop: the column behind the last one.
        whose: number of the long parameter tensor that the columns are a part of; None
            if they belong to short ones.
        tensors: numbers (T,) of the parameter tensors of the columns, in order.
        lengths: number of columns of each of these tensors, (T,).
    """

    start: int
    stop: int
    whose: int | None
    tensors: Tensor
    lengths: Tensor


def cut(
    slots: Sequence[Slot], start: int, stop: int, size: int, device: torch.device
) -> list[Chunk]:
    """Return the chunks of a shard, the elements [start, stop) of the flat buffer.

    Args:
        slots: the places of the parameter tensors in the flat buffer.
        start: the element of the flat buffer that is column 0 of the shard.
        stop: the element behind the last one of the shard.
        size: number of vectors, N.
        device: the device of the shard.
    """
    room_of_all = CHUNK if device.type == "cpu" else GPU_CHUNK
    longest = max(room_of_all // (8 * size), 1)
    groups: list[list[tuple[int, int, int]]] = []
    room = 0
    for tensor, slot in enumerate(slots):
        end = min(slot.stop, stop)
        for begin in range(max(slot.start, start), end, longest):
            part = tensor, begin - start, min(begin + longest, end) - start
            length = part[2] - part[1]
            short = slot.stop - slot.start < SHORT
            if short and length <= room:
                groups[-1].append(part)
                room -= length
            else:
                groups.append([part])
                room = longest - length if short else 0
    return [_chunk(slots, group, device) for group in groups]


def _chunk(
    slots: Sequence[Slot], parts: list[tuple[int, int, int]], device: torch.device
) -> Chunk:
    tensors, starts, stops = torch.tensor(parts, device=device).unbind(1)
    first = slots[parts[0][0]]
    whose = None if first.stop - first.start < SHORT else parts[0][0]
    return Chunk(parts[0][1], parts[-1][2], whose, tensors, stops - starts)


class Shard:
    """The columns of all vectors that one learner works on, as they arrive.

    Memory: the array (N, S), and two chunks.

    Attributes:
        block: the array (N, S), with a row for each vector.
        matrices: the Gram matrices (L, N, N) of the columns seen so far, float64.

    Args:
        block: the array (N, S), which receives the columns.
        chunks: the chunks of the columns, in order.
        tensors: number of parameter tensors, L.
    """

    def __init__(self, block: Tensor, chunks: Sequence[Chunk], tensors: int) -> None:
        self.block = block
        size, double = len(block), torch.float64
        self.matrices = block.new_empty(tensors, size, size, dtype=double)
        self._chunks = chunks
        widest = max((chunk.stop - chunk.start for chunk in chunks), default=0)
        self._rows = block.new_empty(size, widest, dtype=double)
        self._sums = block.new_empty(widest, dtype=double)
        # Vectors that cancel must leave exactly nothing. A fused multiply-add would
        # leave what rounding takes from a product of float64 numbers. For vectors of
        # shorter numbers it leaves nothing: the coefficients with which they cancel
        # have few bits, so their products are exact. With two vectors fused
        # multiply-adds are not used either, because the result must have the same bits
        # in either order of the two.
        self._fused = size > 2 and block.element_size() < 8

    def begin(self) -> None:
        """Begin to combine new vectors: no column of theirs has been seen."""
        self.matrices.zero_()
        self._unseen, self._uncombined = deque(self._chunks), deque(self._chunks)

    def see(self, stop: int) -> None:
        """Add columns to the Gram matrices, in whole chunks.

        Args:
            stop: the columns before this one have arrived. A chunk that ends behind it
                waits for the next call.
        """
        while self._unseen and self._unseen[0].stop <= stop:
            chunk = self._unseen.popleft()
            if chunk.whose is None:
                _add_segments(self.matrices, self._load(chunk), chunk)
                continue
            rows = self._load(chunk)
            self.matrices[chunk.whose].addmm_(rows, rows.T)

    def combine(self, c: Tensor, result: Tensor, stop: int) -> None:
        """Write sum_i c_i block_i to columns of `result`, in whole chunks.

        Columns of the block from `stop` on are read later, but for those of a chunk
        that has begun before it.

        Args:
            c: the coefficients (L, N) of each parameter tensor, float64.
            result: the combined vector (S,), of the vectors' dtype; it may be a row of
                the block.
            stop: all columns before this one are written.
        """
        while self._uncombined and self._uncombined[0].start < stop:
            chunk = self._uncombined.popleft()
            rows = self._load(chunk)
            if chunk.whose is not None and self._fused:
                sums = self._sums[: rows.shape[1]]
                torch.mv(rows.T, c[chunk.whose], out=sums)
            else:
                sums = _sum_pairs(rows.mul_(_column_coefficients(c, chunk)))
            result[chunk.start : chunk.stop] = sums

    def _load(self, chunk: Chunk) -> Tensor:
        """Return the chunk (N, columns) in float64, valid until the next call."""
        rows = self._rows[:, : chunk.stop - chunk.start]
        return rows.copy_(self.block[:, chunk.start : chunk.stop])


def _column_coefficients(c: Tensor, chunk: Chunk) -> Tensor:
    """Return the chunk's coefficients, (N, columns) or (N, 1) if all are equal."""
    if chunk.whose is not None:
        return c[chunk.whose].unsqueeze(1)
    return c[chunk.tensors].repeat_interleave(chunk.lengths, 0).T


def _sum_pairs(rows: Tensor) -> Tensor:
    """Return the sum (S,) of `rows` (N, S), which are overwritten.

    Adjacent pairs are added first, as in the tree. So a pair that cancels leaves
    nothing, and 2^q equal rows are added without rounding.
    """
    while len(rows) > 1:
        odd = rows[1::2]
        rows = rows[::2]
        rows[: len(odd)].add_(odd)
    return rows[0]


def _add_segments(matrices: Tensor, rows: Tensor, chunk: Chunk) -> None:
    """Add the Gram matrices of a chunk's short tensors, one row of all at a time."""
    for first, row in enumerate(rows):
        products = rows[first:] * row
        lengths = chunk.lengths.expand(len(products), -1).contiguous()
        sums = torch.segment_reduce(products, "sum", lengths=lengths, axis=1).T
        matrices[chunk.tensors, first, first:] += sums
        matrices[chunk.tensors, first + 1 :, first] += sums[:, 1:]
