"""The neighbours of a learner of D-PSGD, and its messages to and from them.

In mixing k learner i sends its message s_i to its neighbours, and receives theirs. What
they weigh together is the difference that the mixing makes to s_i:

    sum_j W_ij s_j - s_i = sum_j W_ij (s_j - s_i)

W is that of mixing k, see `core.mixing`. Where learners take their mean (complete,
alternating), an all-reduce brings it as one message, whose weight is 1.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import (
    AllReduceMean,
    Begin,
    Effect,
    NeighbourAllGather,
    Program,
    Wait,
)
from espnet_distopt.core.mixing import (
    Topology,
    alternating_group,
    mixing_weights,
    rounds_of,
)


class Neighbours:
    """The neighbours of one learner, with which it makes one mixing after the other.

    Attributes:
        topology: the neighbours of a learner.
        rounds: the number of mixings after which the matrices repeat, see `rounds_of`.
        in_flight: whether a mixing has begun whose messages have not been received.

    Args:
        topology: the neighbours of a learner.
        rank: this learner's rank.
        size: number of learners, N.
        per_node: number of learners on each node; only `alternating` depends on it.
        seed: seed of the orders of the randomized ring.
        sent: this learner's message (S,), which the caller writes before each mixing
            and does not change while that is in flight.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        size: int,
        per_node: int,
        seed: int,
        sent: Tensor,
    ) -> None:
        self.topology = topology
        self._rank, self._size = rank, size
        self._per_node, self._seed = per_node, seed
        self.rounds = rounds_of(topology, size, per_node)
        self._sent = sent
        self._weights: list[float] = []
        self._received = sent.new_empty(0)
        self.forget()

    def forget(self) -> None:
        """Forget the mixing in flight, as if it had never begun."""
        self._handle: Any = None

    @property
    def in_flight(self) -> bool:
        """Whether a mixing has begun whose messages have not been received."""
        return self._handle is not None

    def begin(self, k: int, anew: bool = False) -> Program:
        """Begin the mixing number `k`.

        Args:
            k: the number.
            anew: whether new memory receives the messages, so that those of the last
                mixing stay as they are. Otherwise they are overwritten.
        """
        weights = self._senders(k)
        into: Tensor | None = None
        if not anew:
            if len(self._received) != len(weights):
                self._received = self._sent.new_empty((len(weights), len(self._sent)))
            into = self._received
        self._weights = list(weights.values())
        collective: AllReduceMean | NeighbourAllGather
        if self._takes_means:
            mean = torch.empty_like(self._sent) if into is None else into[0]
            collective = AllReduceMean(mean.copy_(self._sent), self.group(k))
        else:
            collective = NeighbourAllGather(self._sent, tuple(weights), into)
        self._handle = yield Begin(collective)

    def receive(self) -> Generator[Effect, Any, Tensor]:
        """Wait for the mixing in flight; return its messages, a row for each weight."""
        received: Tensor = yield Wait(self._handle)
        self._handle = None
        return received.view(-1, self._sent.numel())

    def mixed(self, received: Tensor) -> Tensor:
        """Return sum_j W_ij (s_j - s_i), which overwrites the messages (senders, S)."""
        first, *others = self._weights
        for sent, total, *rows in cache_blocks(self._sent, *received):
            total.sub_(sent).mul_(first)
            for weight, row in zip(others, rows, strict=True):
                total.add_(row.sub_(sent), alpha=weight)
        return received[0]

    def row(self, k: int) -> dict[int, float]:
        """Return this learner's row of the mixing matrix W_k: learner -> weight."""
        return mixing_weights(self.topology, self._rank, self._size, k, self._seed)

    def group(self, k: int) -> tuple[int, ...] | None:
        """Return the learners that take their mean in mixing `k`; None means all."""
        if self.topology == "complete":
            return None
        return alternating_group(self._rank, self._size, self._per_node, k)

    @property
    def _takes_means(self) -> bool:
        return self.topology in ("complete", "alternating")

    def _senders(self, k: int) -> dict[int, float]:
        """Return the senders of the messages of mixing `k`, with their weights.

        A mean is one message, of all who take it together, and stands under -1.
        """
        if self._takes_means:
            return {-1: 1.0}
        row = self.row(k)
        del row[self._rank]
        return row
