"""Adasum (Maleki et al., MLSys 2021): updates are added where they are orthogonal.

Learners take `period` local optimizer steps from common parameters x. Their updates are
then combined, for each parameter tensor on its own:

    delta_i = x_i - x        x <- x + Adasum(delta_1, ..., delta_N)

Updates rather than gradients are combined, because that suits every optimizer; for
plain SGD the result is the same. The optimizer's state stays local, and so does
gradient clipping. A learner that has come to the end of its epoch takes part with a
zero update, which changes nothing.

With nodes of m learners (`per_node`), updates are averaged inside a node and combined
across the N/m nodes. Ranks of a node are consecutive.

Cost of combining, for n bytes of parameters in L tensors: 2n(N-1)/N, or 3n(m-1)/m
inside a node and 2(n/m)(K-1)/K across K = N/m nodes; and about 8 L K^2 bytes of Gram
matrices, 13 MB for 400 tensors of 64 nodes. Memory, at all times: P elements, and
P/m for one shard of every node's vector, whose place the result takes. While updates
are combined, they overwrite the parameters, and only some MB and the Gram matrices are
needed beside that.

Without nodes, the training survives the death of any learner: the others combine their
own updates, which an exchange leaves as they are.

**The arithmetic** is a tree of pairs, by Gram matrices.

    Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

Orthogonal vectors are added and parallel ones averaged. Of N vectors, adjacent pairs
are combined, then adjacent pairs of the results, and so on. If their number is odd, the
last one goes on to the next level as it is. The rule is commutative but not
associative, so the result depends on the order of the learners.

The result is sum_i c_i g_i, where the coefficients c depend only on the Gram matrix G
of the vectors: partial results are rows of coefficients A and B, and a.b = A G B'. So
learners communicate once, and not once for each level of the tree. Each parameter
tensor has its own G and c. Dot products and sums are float64, whatever the dtype of the
vectors.

A vector a counts as zero if |a|^2 is below `TINY`, or below `CANCELLED` times the sum
of the absolute terms of A G A': when two vectors cancel to within 3e-6 of their length,
only rounding is left. The pair (a, b) then gives a + b. Without that rule such a
remainder, however small, would take away half of b's projection on it. Above these
bounds the relative error, compared with a tree of the vectors themselves, is up to
about 1e-15 times the square of length / remainder.

If another vector's projection on a vector differs from that vector by no more than
`EQUAL`, relative to it, the two count as equal. So equal vectors give just that vector,
although the entries of G are summed in different orders.

**The exchange.** Each learner computes one shard. It receives its shard of every node's
vector. As columns arrive, it adds them to its part of the Gram matrices. All learners
sum their parts, and compute the same coefficients. Then each combines its shard chunk
by chunk, while the chunks before are being sent to all others.

The shards of N vectors are an array (N, S), with a row for each vector. A chunk holds a
part of one long parameter tensor, whose Gram matrix is one matrix product; or several
short tensors, whose products are summed by segments. So the number of operations grows
with the number of elements, and not with that of tensors.
"""

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Effect,
    Program,
)
from espnet_distopt.core.learner import Learner, Slot
from espnet_distopt.core.membership import Members
from espnet_distopt.core.topology import node_ranks
from espnet_distopt.errors import InputError

TINY = math.sqrt(torch.finfo(torch.float64).tiny)
"""A vector counts as zero if its squared length is below this."""

CANCELLED = 1e-12
"""A vector counts as zero if its terms cancel to below this share of their sum."""

EQUAL = 16 * torch.finfo(torch.float64).eps
"""Two vectors count as equal if one's projection on the other is this close to it."""


def coefficients(matrices: Tensor) -> Tensor:
    """Return the coefficients c (L, N) of N vectors, for each of L parameter tensors.

    Args:
        matrices: the Gram matrices (L, N, N), float64.
    """
    tensors, size, _ = matrices.shape
    rows = torch.eye(size, dtype=matrices.dtype, device=matrices.device)
    rows = rows.expand(tensors, size, size)
    magnitudes = matrices.abs()
    while (count := rows.shape[1]) > 1:
        last = rows[:, count - count % 2 :]
        a, b = rows[:, 0 : count - 1 : 2], rows[:, 1:count:2]
        dot = (a @ matrices * b).sum(-1, keepdim=True)
        a = _own_coefficient(dot / _square(a, matrices, magnitudes)) * a
        b = _own_coefficient(dot / _square(b, matrices, magnitudes)) * b
        rows = torch.cat([a + b, last], dim=1)
    return rows[:, 0]


def _own_coefficient(projection: Tensor) -> Tensor:
    """Return a vector's coefficient: 1 less half the other's projection on it."""
    equal = (projection - 1).abs() <= EQUAL
    return 1 - projection.masked_fill(equal, 1) / 2


def _square(rows: Tensor, matrices: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the squared lengths (L, n, 1) of partial results; infinite for zeros."""
    square = (rows @ matrices * rows).sum(-1, keepdim=True)
    terms = (rows.abs() @ magnitudes * rows.abs()).sum(-1, keepdim=True)
    zero = (square < TINY) | (square < CANCELLED * terms)
    return square.masked_fill(zero, math.inf)


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


class AdasumExchange:
    """Combines one vector (P,) of each learner; the result has the same bits on all.

    A vector stays as it is until its result is complete, so that the exchange can be
    repeated if a learner has died.

    With m learners a node and K nodes, the vector is an array (m, K, S), S = P // mK,
    and a rest of less than mK elements, padded to (m, K, 1). Learner r of node k
    computes shard [r, k] of both. An empty one is not sent.

    Memory: (S + 1) K elements, P/m, for the shards of all nodes, which the results
    take the place of, chunk by chunk. They are kept at all times, because allocating so
    much memory anew takes as long as the arithmetic.

    Args:
        learner: this learner, and the members.
        per_node: number of learners on each node, m.
    """

    def __init__(self, learner: Learner, per_node: int) -> None:
        self._ranks = learner.members.ranks
        self._size = len(self._ranks)
        self._per_node = min(per_node, self._size)
        own = self._ranks.index(learner.rank)
        self._number, self._place = divmod(own, self._per_node)
        self._node = tuple(self._ranks[n] for n in node_ranks(own, self._per_node))
        self._peers = self._ranks[self._place :: self._per_node]
        length, rest = divmod(learner.params.numel(), self._size)
        self._whole = length * self._size
        shard = self._place * len(self._peers) + self._number
        self._body = self._make_shard(learner, shard * length, length)
        self._rest = self._make_shard(learner, self._whole + shard, min(rest, 1))

    def __call__(
        self, vector: Tensor
    ) -> Generator[Effect, Any, list[tuple[slice, Tensor]] | None]:
        """Return Adasum of the nodes' mean vectors, in parts, which have no overlap.

        The parts are valid until the next call, or until `vector` (P,) changes. The
        result is None if a learner has died meanwhile. All others are told the same,
        and the vector is as it was. With several learners on a node it is changed.
        """
        if (yield AllReduceMean(vector, self._node)) is None:
            return None
        tail = vector[self._whole :]
        rest = vector.new_zeros(self._rest.block.shape[1] * self._size)
        rest[: len(tail)] = tail
        parts = (self._body, vector[: self._whole]), (self._rest, rest)
        for shard, part in parts:
            if not (yield from self._scatter(shard, part)):
                return None
        matrices = yield from self._sum(self._body.matrices.add_(self._rest.matrices))
        if matrices is None:
            return None
        c = coefficients(matrices)
        results = []
        for shard, part in parts:
            result = yield from self._gather(shard, part, c)
            if result is None:
                return None
            results.append(result)
        body, rest = results
        return [
            (slice(self._whole), body),
            (slice(self._whole, None), rest[: len(tail)]),
        ]

    def _make_shard(self, learner: Learner, start: int, length: int) -> Shard:
        block = learner.params.new_empty(len(self._peers), length)
        chunks = cut(learner.slots, start, start + length, len(block), block.device)
        return Shard(block, chunks, len(learner.slots))

    def _scatter(self, shard: Shard, part: Tensor) -> Generator[Effect, Any, bool]:
        """Receive the shard of `part` from every node, and its Gram matrices.

        Returns False if a learner has died.
        """
        shard.begin()
        if not len(part):
            return True
        own = part.view(self._per_node, *shard.block.shape)[self._place]
        effect = AllToAll(own, self._peers, shard.block, shard.see)
        return (yield effect) is not None

    def _gather(
        self, shard: Shard, part: Tensor, c: Tensor
    ) -> Generator[Effect, Any, Tensor | None]:
        """Combine this learner's shard, receive all others, and return the result.

        Returns None if a learner has died.
        """
        if not len(part):
            return part
        own = shard.block[self._number]
        combine = partial(shard.combine, c, own)
        if (yield AllGather(own, self._peers, shard.block, combine)) is None:
            return None
        combined = shard.block.view(-1)
        if self._per_node == 1:
            return combined
        slices = part.view(self._per_node, -1)
        if (yield AllGather(combined, self._node, slices)) is None:
            return None
        return part

    def _sum(self, matrices: Tensor) -> Generator[Effect, Any, Tensor | None]:
        """Sum the Gram matrices (L, K, K) over all learners' shards, in place.

        A Gram matrix is symmetric, so only one half of it is sent. Returns None if a
        learner has died.
        """
        rows, columns = torch.triu_indices(
            *matrices.shape[1:], device=matrices.device
        ).unbind()
        half = matrices[:, rows, columns]
        if (yield AllReduceMean(half, self._ranks)) is None:
            return None
        matrices[:, rows, columns] = half.mul_(self._size)
        matrices[:, columns, rows] = half
        return matrices


@dataclass(frozen=True, kw_only=True)
class AdasumConfig:
    """Options of `adasum`.

    Attributes:
        period: number of local steps before updates are combined.
        per_node: number of learners on each node, whose mean is taken before Adasum; 1
            is full Adasum.
    """

    period: int = 1
    per_node: int = 1

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period must be >= 1, not {self.period}")
        if self.per_node < 1:
            raise InputError(f"per_node must be >= 1, not {self.per_node}")


class Adasum(Algorithm):
    """Adasum of the learners' updates.

    Attributes:
        config: the options.
        shared: the common parameters (P,) at the start of the period, x.
    """

    survives = True  # without nodes

    def __init__(self, config: AdasumConfig, learner: Learner) -> None:
        self.config = config
        self.shared = learner.params.detach().clone()
        # With nodes, the learners of one node may not know what another has met with.
        self.survives = config.per_node == 1
        self._exchange = AdasumExchange(learner, config.per_node)
        self._local_steps = 0
        self._some_ended = False
        self._updates = learner.updates

    @classmethod
    def check_size(cls, config: AdasumConfig, size: int) -> None:
        """Raise InputError if some node would have fewer learners than the others."""
        if size > 1 and size % config.per_node:
            raise InputError(
                f"{size} learners do not fill nodes of per_node: {config.per_node}; "
                "the number of learners must be a multiple of it"
            )

    def change_members(self, learner: Learner, members: Members) -> None:
        """Combine the updates of these learners from now on."""
        super().change_members(learner, members)
        self._exchange = AdasumExchange(learner, self.config.per_node)

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters as the common ones."""
        yield from super().start(learner)
        self.shared.copy_(learner.params)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of a period, combine the updates."""
        if learner.size == 1:
            return
        self._local_steps += 1
        if self._local_steps >= self.config.period:
            yield from self._end_period(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter period; join in those of learners with more data."""
        if learner.size == 1:
            return
        while True:
            everybody_ended = yield from self._end_period(learner, ended=True)
            if everybody_ended:
                return

    def next_stop(self, learner: Learner) -> int:
        """Return the step that ends the period: others may wait there already."""
        return learner.steps + self.config.period - self._local_steps

    def can_pause(self, learner: Learner) -> bool:
        """Return False while learners with less data have ended their epoch already."""
        return not self._some_ended

    def _end_period(
        self, learner: Learner, ended: bool
    ) -> Generator[Effect, Any, bool]:
        """Combine updates; return whether every learner has ended its epoch."""
        message = [float(ended), float(learner.updates - self._updates)]
        agreed: Tensor = yield AllReduceMean(
            torch.tensor(message, dtype=torch.float64, device=learner.params.device)
        )
        share_ended, updates = agreed.tolist()
        self._some_ended = 0 < share_ended < 1
        if updates > 0:
            # The updates overwrite the parameters: new memory for them would be slow.
            update = learner.params.sub_(self.shared)
            while (results := (yield from self._exchange(update))) is None:
                pass  # Those who live combine theirs anew.
            for part, combined in results:
                self.shared[part] += combined
            learner.params.copy_(self.shared)
        self._local_steps = 0
        self._updates = learner.updates
        return bool(share_ended == 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the period, at any of its steps."""
        return {
            "shared": self.shared.clone(),
            "local_steps": self._local_steps,
            "updates": self._updates,
        }

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Take over the period of the others, who have just ended one."""
        super().join(learner, state)
        self._updates = learner.updates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        self.shared.copy_(state["shared"])
        self._local_steps = state["local_steps"]
        self._updates = state["updates"]
