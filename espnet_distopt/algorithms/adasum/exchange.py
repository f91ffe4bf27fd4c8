"""The exchange in which learners carry out Adasum: each computes one shard.

A learner receives its shard of every node's vector. As columns arrive, it adds them to
its part of the Gram matrices. All learners sum their parts, and compute the same
coefficients. Then each combines its shard chunk by chunk, while the chunks before are
being sent to all others.
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

        Args:
            shard: the shard of `part` that this learner computes.
            part: the vector, or its rest.
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

        Args:
            shard: the shard of `part` that this learner computes.
            part: the vector, or its rest.
            c: the coefficients (L, K).
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
