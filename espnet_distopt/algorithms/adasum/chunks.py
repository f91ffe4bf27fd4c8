"""Columns of a block (N, S) of vectors, worked through in chunks that fit in a cache.

A chunk holds a part of one tensor, whose Gram matrix is one matrix product; or short
tensors, whose products are summed by segments. So the number of operations goes with
the number of elements, not of tensors.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet_distopt.core.learner import Slot

CHUNK = 1 << 20
"""Bytes of a chunk in float64: what a second-level cache holds."""

SHORT = 1 << 12
"""Elements; tensors with fewer share a chunk."""


@dataclass(frozen=True)
class Chunk:
    """Columns [start, stop) of a block.

    Attributes:
        whose: the parameter tensor that they are a part of; None: short ones.
        tensors: (T,) the parameter tensors that they belong to, in order.
        lengths: (T,) the columns of each.
    """

    start: int
    stop: int
    whose: int | None
    tensors: Tensor
    lengths: Tensor


def cut(
    slots: Sequence[Slot], start: int, stop: int, size: int, device: torch.device
) -> list[Chunk]:
    """Return chunks of elements [start, stop) of the flat buffer.

    Args:
        slots: of the flat buffer.
        start: column 0 of the block.
        stop: where the block ends.
        size: rows of the block, N.
        device: of the block.
    """
    longest = max(CHUNK // (8 * size), 1)
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

    Memory: the block, and two chunks.

    Attributes:
        block: (N, S) a row of each vector.
        matrices: (L, N, N) Gram matrices of the columns seen, float64.

    Args:
        chunks: of the columns.
        tensors: L.
    """

    def __init__(self, block: Tensor, chunks: Sequence[Chunk], tensors: int) -> None:
        self.block = block
        size, double = len(block), torch.float64
        self.matrices = block.new_empty(tensors, size, size, dtype=double)
        self._chunks = chunks
        widest = max((chunk.stop - chunk.start for chunk in chunks), default=0)
        self._rows = block.new_empty(size, widest, dtype=double)
        self._sums = block.new_empty(widest, dtype=double)
        # Vectors that cancel must leave nothing. Fused multiply-adds leave what the
        # product of a float64 number has lost; the coefficients with which shorter
        # numbers cancel have few bits, and the products lose nothing. Of two vectors,
        # besides, either must come first with the same bits.
        self._fused = size > 2 and block.element_size() < 8

    def begin(self) -> None:
        """Begin an exchange: no column has been seen."""
        self.matrices.zero_()
        self._unseen, self._uncombined = deque(self._chunks), deque(self._chunks)

    def see(self, stop: int) -> None:
        """Add columns up to `stop`, but for those of a chunk that ends behind it."""
        while self._unseen and self._unseen[0].stop <= stop:
            chunk = self._unseen.popleft()
            rows = self._load(chunk)
            if chunk.whose is None:
                _add_segments(self.matrices, rows, chunk)
            else:
                self.matrices[chunk.whose].addmm_(rows, rows.T)

    def combine(self, c: Tensor, result: Tensor, stop: int) -> None:
        """Write sum_i c_i block_i to columns of `result` (S,), up to `stop` at least.

        Args:
            c: (L, N) coefficients of each tensor, float64.
            result: of the vectors' dtype.
            stop: a column.
        """
        while self._uncombined and self._uncombined[0].start < stop:
            chunk = self._uncombined.popleft()
            rows = self._load(chunk)
            if chunk.whose is not None and self._fused:
                sums = self._sums[: rows.shape[1]]
                torch.mv(rows.T, c[chunk.whose], out=sums)
            else:
                sums = _sum_pairs(rows.mul_(_of_columns(c, chunk)))
            result[chunk.start : chunk.stop] = sums

    def _load(self, chunk: Chunk) -> Tensor:
        """Return the chunk in float64, valid until the next."""
        rows = self._rows[:, : chunk.stop - chunk.start]
        return rows.copy_(self.block[:, chunk.start : chunk.stop])


def _of_columns(c: Tensor, chunk: Chunk) -> Tensor:
    """Return the coefficients of each column, (N, columns) or (N, 1)."""
    if chunk.whose is not None:
        return c[chunk.whose].unsqueeze(1)
    return c[chunk.tensors].repeat_interleave(chunk.lengths, 0).T


def _sum_pairs(rows: Tensor) -> Tensor:
    """Return the sum of `rows` (N, S), overwriting them.

    By adjacent pairs, as the tree: a pair that cancels leaves nothing, and 2^q equal
    rows are added without a rounding.
    """
    while len(rows) > 1:
        odd = rows[1::2]
        rows = rows[::2]
        rows[: len(odd)].add_(odd)
    return rows[0]


def _add_segments(matrices: Tensor, rows: Tensor, chunk: Chunk) -> None:
    """Add the Gram matrices of the chunk's tensors, a row of each at a time."""
    for first, row in enumerate(rows):
        products = rows[first:] * row
        lengths = chunk.lengths.expand(len(products), -1).contiguous()
        sums = torch.segment_reduce(products, "sum", lengths=lengths, axis=1).T
        matrices[chunk.tensors, first, first:] += sums
        matrices[chunk.tensors, first + 1 :, first] += sums[:, 1:]
