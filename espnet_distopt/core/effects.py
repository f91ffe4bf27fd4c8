"""Effects: what an algorithm yields when it must talk to other learners.

An algorithm is a generator. It yields an effect, a driver carries the effect out, and
the result comes back as the value of the `yield`. A learner has a training side, which
runs its steps, and may have a gossip side, which runs beside them. Between two yields a
generator is atomic: a driver never runs both sides of one learner at the same time.
Only the work of `RunInBackground` is an exception.

Costs are the bytes that one learner sends, for a tensor of n bytes and N learners.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

# Collectives: the effects that several learners carry out together

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


# The other effects


@dataclass(frozen=True, eq=False)
class Begin:
    """Begin a collective, and let the training go on beside it.

    The result is a handle for `Wait`. Until then nobody may read or write the tensor of
    the collective. All learners begin and complete the same collectives, in the same
    order.
    """

    collective: AllReduceMean | NeighbourAllGather


@dataclass(frozen=True, eq=False)
class Wait:
    """Wait until a collective that was begun has ended; the result is its result."""

    handle: Any


@dataclass(frozen=True)
class Invite:
    """Ask `peer` for an exchange, and wait until it is ready: it yields `Exchange`.

    The peer may be in an exchange with another learner, or wait for the end of its own
    step, however long that takes. If it dies, the wait ends, and the exchange is
    dropped.
    """

    peer: int


@dataclass(frozen=True)
class Retire:
    """Say that this learner will invite nobody any more, without waiting.

    When all living ones of the active learners have said so, each passive one is told.
    That takes N messages in all.

    Attributes:
        actives: the ranks that are active in this epoch, dead ones included.
        passives: the ranks of the passive learners.
    """

    actives: tuple[int, ...]
    passives: tuple[int, ...]


@dataclass(frozen=True)
class AwaitInvitation:
    """Wait for an invitation from an active learner; the result is its rank.

    The result is None once all living ones of the active learners have retired.

    Attributes:
        peers: the ranks that are active in this epoch, dead ones included.
    """

    peers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Send `tensor` to `peer` and receive the peer's tensor; the result is `into`.

    Both ends must yield it. Nobody may read or write either tensor until the result is
    back. Cost: n. If the exchange is dropped, because the peer has died or cannot be
    reached, the result is None. It is dropped at both ends or at none, unless one of
    them has died.

    Attributes:
        peer: the rank of the other end.
        tensor: what is sent.
        into: what receives the peer's tensor.
    """

    peer: int
    tensor: Tensor
    into: Tensor


@dataclass(frozen=True, eq=False)
class RunInBackground:
    """Gossip side: run `work`, which takes long, while the training side goes on.

    Until it has ended, the training side does not touch what `work` writes, and does
    not write what `work` reads. The result is None.
    """

    work: Callable[[], object]


@dataclass(frozen=True)
class AwaitStep:
    """Gossip side: wait until the training side has published again.

    The result is True, or False when the training side has ended its epoch.
    """


@dataclass(frozen=True)
class AwaitGossip:
    """Training side: wait until the gossip side has made progress."""


@dataclass(frozen=True, eq=False)
class StartGossip:
    """Training side: let `program` run on the gossip side, until `StopGossip`.

    Attributes:
        program: the program.
        device: the device of the tensors that both sides touch.
    """

    program: "Program"
    device: torch.device


@dataclass(frozen=True)
class Published:
    """Training side: tell the gossip side that a step has ended and been published."""


@dataclass(frozen=True)
class StopGossip:
    """Training side: end the gossip of an epoch, and wait until it has ended.

    An active learner invites nobody any more; a passive one goes on answering until all
    active learners have retired.
    """


@dataclass(frozen=True)
class Barrier:
    """Training side: wait for all living learners, however long they take.

    The result is a `Meeting`: those who have met, and whether any of them is `pausing`.

    Attributes:
        pausing: whether this learner stops within the epoch.
    """

    pausing: bool = False


LIFECYCLE = (StartGossip, Published, StopGossip, Barrier)
"""The effects of `algorithms.lifecycle`. What a program does between such an effect and
its next one is no section of the algorithm: a recording of a run leaves it out."""

Effect = (
    Collective
    | Begin
    | Wait
    | Invite
    | Retire
    | AwaitInvitation
    | Exchange
    | RunInBackground
    | AwaitStep
    | AwaitGossip
    | StartGossip
    | Published
    | StopGossip
    | Barrier
)

Program = Generator[Effect, Any, None]
"""A program of an algorithm: it yields effects, is sent their results, and returns
nothing."""


def only(effect: Effect) -> Generator[Effect, Any, Any]:
    """Return the program of a single effect, whose result it returns."""
    return (yield effect)
