"""Collectives: the effects that several learners carry out together.

Costs are the bytes that one learner sends, for a tensor of n bytes and N learners.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

Ranks = tuple[int, ...] | None
"""The ranks of the learners that take part in a collective, in ascending order; None
means all living learners. Each of them yields the collective. If one of them dies
before all have the result, and the algorithm survives, a collective of all is repeated
among those who live, from what they contributed. One of given ranks is dropped: the
result is None, and `tensor` is as it was."""

Work = Callable[[int], None]
"""What a learner computes beside a collective, piece by piece; see `AllToAll`."""


@dataclass(frozen=True, eq=False)
class Collective:
    """An operation that several learners carry out together.

    Attributes:
        tensor: what this learner contributes.
    """

    tensor: Tensor

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that one learner sends, where `size` learners take part."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class GroupCollective(Collective):
    """A collective of a group of learners.

    Attributes:
        ranks: the group; None means all learners.
    """

    ranks: Ranks = None

    def with_work(self, change: Callable[[Work], Work | None]) -> Self:
        """Return this effect with `change` made to its work beside the communication.

        An effect without such work is returned as it is.
        """
        return self


@dataclass(frozen=True, eq=False)
class AllReduceMean(GroupCollective):
    """Replace `tensor` by its mean over `ranks`, in place; the result is `tensor`.

    Every learner gets the same bits. In a group of one learner `tensor` keeps its bits.
    Cost: 2n(N-1)/N.

    Attributes:
        kept: another tensor with the same content, which does not change until the
            result is there. After a death the average is repeated from it. If it is
            None, a driver that survives deaths makes a copy.
    """

    kept: Tensor | None = None

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that one learner sends, where `size` learners take part."""
        return 2 * self.tensor.nbytes * (size - 1) // size


@dataclass(frozen=True, eq=False)
class Broadcast(GroupCollective):
    """Overwrite `tensor` by that of the first of `ranks`; the result is `tensor`.

    Cost: about n.
    """

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that one learner sends, where `size` learners take part."""
        return self.tensor.nbytes if size > 1 else 0


@dataclass(frozen=True, eq=False)
class AllToAll(GroupCollective):
    """Send row j of `tensor` (N, S) to the j-th of `ranks`, and receive a row from it.

    The result is `into` (N, S), whose row j came from the j-th learner. The rows of
    both tensors are contiguous; the tensors themselves need not be. Cost: n(N-1)/N.

    Attributes:
        into: tensor (N, S) that receives the rows; None makes a new one.
        arrived: function that is called with j, from time to time, when columns 0 to
            j - 1 of `into` have arrived. What it computes runs beside the rest of the
            communication. The last call has j = S.
    """

    into: Tensor | None = None
    arrived: Work | None = None

    def with_work(self, change: Callable[[Work], Work | None]) -> Self:
        """Return this effect with `change` made to `arrived`."""
        return replace(self, arrived=self.arrived and change(self.arrived))

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that one learner sends, where `size` learners take part."""
        return self.tensor.nbytes * (size - 1) // size


@dataclass(frozen=True, eq=False)
class AllGather(GroupCollective):
    """Gather the `tensor` (S,) of each of `ranks` on all of them.

    The result is `into` (N, S), whose row j is the tensor of the j-th learner. Its rows
    are contiguous, and this learner's row may be `tensor` itself. Cost: n(N-1).

    Attributes:
        into: tensor (N, S) that receives the rows; None makes a new one.
        prepare: function that is called with j, from time to time, before elements 0 to
            j - 1 of `tensor` are sent, so that it may compute them. The last call has
            j = S.
    """

    into: Tensor | None = None
    prepare: Work | None = None

    def with_work(self, change: Callable[[Work], Work | None]) -> Self:
        """Return this effect with `change` made to `prepare`."""
        return replace(self, prepare=self.prepare and change(self.prepare))

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that one learner sends, where `size` learners take part."""
        return self.tensor.nbytes * (size - 1)


@dataclass(frozen=True, eq=False)
class NeighbourAllGather(Collective):
    """Send `tensor` (S,) to each of `peers`; the result has theirs, (len(peers), S).

    Every peer yields it too, with this learner among its own peers. No other learner
    takes part. Cost: n len(peers).

    Attributes:
        peers: the neighbours.
        into: tensor (len(peers), S) that receives the messages and is the result; None
            makes a new one.
    """

    peers: tuple[int, ...]
    into: Tensor | None = None

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that this learner sends, which do not depend on `size`."""
        return self.tensor.nbytes * len(self.peers)
