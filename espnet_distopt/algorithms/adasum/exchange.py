"""How learners carry out Adasum together: each computes one shard of the result.

A learner gets its shard of every node's vector and, as it arrives, computes its part of
the Gram matrices; adds that to those of the others; and combines its shard piece by
piece, while the pieces before are on their way to all.
"""

from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.adasum.chunks import Shard, cut
from espnet_distopt.algorithms.adasum.tree import coefficients
from espnet_distopt.core.effects import AllGather, AllReduceMean, AllToAll, Effect
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.topology import node_ranks


class AdasumExchange:
    """Combines one vector (P,) of each learner; the result has the same bits on all.

    With m learners a node and K nodes, the vector is an array (m, K, S), S = P // mK,
    and a rest of less than mK elements, padded to (m, K, 1). Learner r of node k sees
    to shard [r, k] of either. What is empty is not sent.

    Memory: (S + 1) K elements, P/m, for the shards of all nodes, at all times: to ask
    the system for so much anew takes as long as the arithmetic does.
    """

    def __init__(self, learner: Learner, per_node: int) -> None:
        self._size, self._per_node = learner.size, min(per_node, learner.size)
        self._number, self._place = divmod(learner.rank, self._per_node)
        self._node = node_ranks(learner.rank, self._per_node)
        self._peers = tuple(range(self._place, self._size, self._per_node))
        length, rest = divmod(learner.params.numel(), self._size)
        self._whole = length * self._size
        shard = self._place * len(self._peers) + self._number
        self._body = self._make_shard(learner, shard * length, length)
        self._rest = self._make_shard(learner, self._whole + shard, min(rest, 1))

    def __call__(self, vector: Tensor) -> Generator[Effect, Any, None]:
        """Overwrite `vector` (P,) by Adasum of the nodes' means of it."""
        yield AllReduceMean(vector, self._node)
        body, tail = vector[: self._whole], vector[self._whole :]
        rest = vector.new_zeros(self._rest.block.shape[1] * self._size)
        rest[: len(tail)] = tail
        yield from self._scatter(self._body, body)
        yield from self._scatter(self._rest, rest)
        matrices = self._body.matrices.add_(self._rest.matrices)
        c = coefficients((yield from self._sum(matrices)))
        yield from self._gather(self._body, body, c)
        yield from self._gather(self._rest, rest, c)
        tail.copy_(rest[: len(tail)])

    def _make_shard(self, learner: Learner, start: int, length: int) -> Shard:
        block = learner.params.new_empty(len(self._peers), length)
        chunks = cut(learner.slots, start, start + length, len(block), block.device)
        return Shard(block, chunks, len(learner.slots))

    def _scatter(self, shard: Shard, part: Tensor) -> Generator[Effect, Any, None]:
        """Get the shard of `part` from every node, and see it."""
        shard.begin()
        if not len(part):
            return
        slices = part.view(self._per_node, *shard.block.shape)
        yield AllToAll(slices[self._place], self._peers, shard.block, shard.see)

    def _gather(
        self, shard: Shard, part: Tensor, c: Tensor
    ) -> Generator[Effect, Any, None]:
        """Combine the shard into its place in `part`, and get those of all."""
        if not len(part):
            return
        slices = part.view(self._per_node, *shard.block.shape)
        mine = slices[self._place]
        own = mine[self._number]
        yield AllGather(own, self._peers, mine, partial(shard.combine, c, own))
        yield AllGather(mine.view(-1), self._node, slices.view(self._per_node, -1))

    def _sum(self, matrices: Tensor) -> Generator[Effect, Any, Tensor]:
        """Sum the Gram matrices of all learners' shards; half of each is sent."""
        rows, columns = torch.triu_indices(
            *matrices.shape[1:], device=matrices.device
        ).unbind()
        half = matrices[:, rows, columns]
        yield AllReduceMean(half)
        matrices[:, rows, columns] = half.mul_(self._size)
        matrices[:, columns, rows] = half
        return matrices
