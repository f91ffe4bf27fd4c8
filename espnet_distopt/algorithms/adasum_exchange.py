"""How learners carry out Adasum together: each computes one shard of the result.

A learner gets its shard of every node's vector, adds its part of the Gram matrices to
those of the others, combines its shard, and all shards are gathered.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.adasum_tree import coefficients, combine, gram, spans
from espnet_distopt.effects import AllGather, AllReduceMean, AllToAll, Effect
from espnet_distopt.learner import Learner
from espnet_distopt.topology import node_ranks


class AdasumExchange:
    """Combines one vector (P,) of each learner; the result has the same bits on all.

    The vector is padded and cut into N shards of S elements. Learner r of node k sees
    to shard k of the r-th of a node's slices, (N/m) S elements each.
    """

    def __init__(self, learner: Learner, per_node: int) -> None:
        self._size, self._per_node = learner.size, min(per_node, learner.size)
        node, self._place = divmod(learner.rank, self._per_node)
        self._node = node_ranks(learner.rank, self._per_node)
        self._peers = tuple(range(self._place, self._size, self._per_node))
        self._shard = -(-learner.params.numel() // self._size)
        start = (self._place * len(self._peers) + node) * self._shard
        self._spans = spans(learner.slots, start, start + self._shard)
        self._tensors = len(learner.slots)

    def __call__(self, vector: Tensor) -> Generator[Effect, Any, Tensor]:
        """Return Adasum of the nodes' means of `vector` (P,), which is left alone."""
        message = vector.new_zeros(self._size * self._shard)
        message[: len(vector)] = vector
        yield AllReduceMean(message, self._node)
        slices = message.view(self._per_node, len(self._peers), self._shard)
        block: Tensor = yield AllToAll(slices[self._place], self._peers)
        matrices = yield from self._sum(gram(block, self._spans, self._tensors))
        shard = combine(block, self._spans, coefficients(matrices))
        part: Tensor = yield AllGather(shard, self._peers)
        whole: Tensor = yield AllGather(part.flatten(), self._node)
        return whole.flatten()[: len(vector)]

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
