"""Effects: what an algorithm yields when it must talk to other learners.

An algorithm is a generator. It yields an effect, a driver carries the effect out,
and the result comes back as the value of the `yield`. Between two yields a generator
is atomic: a driver never runs the training side and the gossip side of one learner
at the same time, but for the work of `RunInBackground`. Costs are bytes sent by one
learner, for a tensor of n bytes and N learners.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Ranks = tuple[int, ...] | None
"""The learners of a collective, in ascending order; None means all. Each yields it."""


@dataclass(frozen=True, eq=False)
class Collective:
    """What several learners do together, each with its `tensor`."""

    tensor: Tensor

    def bytes_sent(self, size: int) -> int:
        """Return the bytes that each of its `size` learners sends."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class GroupCollective(Collective):
    """A collective of `ranks`."""

    ranks: Ranks = None


@dataclass(frozen=True, eq=False)
class AllReduceMean(GroupCollective):
    """Replace `tensor` by its mean over `ranks`, in place; returns it.

    Every learner gets the same bits. One learner: `tensor` is left untouched, bit for
    bit. Cost: 2n(N-1)/N.
    """

    def bytes_sent(self, size: int) -> int:
        """See above."""
        return 2 * self.tensor.nbytes * (size - 1) // size


@dataclass(frozen=True, eq=False)
class Broadcast(GroupCollective):
    """Overwrite `tensor` by that of the first of `ranks`, in place; returns it.

    Cost: about n.
    """

    def bytes_sent(self, size: int) -> int:
        """See above."""
        return self.tensor.nbytes if size > 1 else 0


@dataclass(frozen=True, eq=False)
class AllToAll(GroupCollective):
    """Send row j of `tensor` (N, S) to the j-th of `ranks`; the j-th's goes to `into`.

    Returns `into` (N, S), whose row j came from the j-th. Rows are contiguous, neither
    whole need be. Cost: n(N-1)/N.

    Attributes:
        into: None: a new tensor.
        arrived: is called with j, from time to time, when columns 0 to j of `into` are
            there: work on them goes on beside the communication. At the end j is S.
    """

    into: Tensor | None = None
    arrived: Callable[[int], None] | None = None

    def bytes_sent(self, size: int) -> int:
        """See above."""
        return self.tensor.nbytes * (size - 1) // size


@dataclass(frozen=True, eq=False)
class AllGather(GroupCollective):
    """Return `into` (N, S): the `tensor` (S,) of each of `ranks`, in order.

    Rows of `into` are contiguous; the own one may be `tensor` itself. Cost: n(N-1).

    Attributes:
        into: None: a new tensor.
        prepare: is called with j, from time to time, before elements 0 to j of `tensor`
            are sent: they may be computed then. At the end j is S.
    """

    into: Tensor | None = None
    prepare: Callable[[int], None] | None = None

    def bytes_sent(self, size: int) -> int:
        """See above."""
        return self.tensor.nbytes * (size - 1)


@dataclass(frozen=True, eq=False)
class NeighbourAllGather(Collective):
    """Send `tensor` (S,) to each of `peers` and return theirs, (len(peers), S).

    Every one of `peers` yields it too, with this learner among its own peers. No other
    learner takes part. Cost: n len(peers).
    """

    peers: tuple[int, ...]

    def bytes_sent(self, size: int) -> int:
        """See above; whatever `size` is."""
        return self.tensor.nbytes * len(self.peers)


@dataclass(frozen=True, eq=False)
class Begin:
    """Begin a collective and return at once: training goes on beside it.

    Returns a handle for `Wait`. The collective's tensor must not be read or written
    before. All learners begin and complete the same collectives in the same order.
    """

    collective: AllReduceMean | NeighbourAllGather


@dataclass(frozen=True, eq=False)
class Wait:
    """Wait for what `Begin` has begun; returns what the collective does."""

    handle: Any


@dataclass(frozen=True)
class Invite:
    """Ask `peer` for an exchange; returns at once. The peer will `Exchange` with us."""

    peer: int


@dataclass(frozen=True)
class Retire:
    """Say that this learner will invite nobody any more; returns at once.

    The last of `actives` learners to do so tells each of `passives`: N messages in all,
    whoever might have invited whom.
    """

    actives: int
    passives: tuple[int, ...]


@dataclass(frozen=True)
class AwaitInvitation:
    """Wait for an invitation from one of `peers`; returns the rank that sent it.

    Returns None once all active learners have retired.
    """

    peers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Send `tensor` to `peer`; write what the peer sent to `into`; returns that.

    Both ends must yield it. Neither tensor may be touched until the result is back.
    Cost: n.
    """

    peer: int
    tensor: Tensor
    into: Tensor


@dataclass(frozen=True, eq=False)
class RunInBackground:
    """Gossip side: run `work`, which is long, while the training side goes on.

    The training side leaves alone what `work` writes, and does not write what it reads,
    until the result is back: None.
    """

    work: Callable[[], object]


@dataclass(frozen=True)
class AwaitStep:
    """Gossip side: wait until the training side has published again.

    Returns True, or False when the training side has ended (an epoch, or for good).
    """


@dataclass(frozen=True)
class AwaitGossip:
    """Training side: wait until the gossip side has made progress."""


@dataclass(frozen=True, eq=False)
class StartGossip:
    """Training side: let `program` run on the gossip side, until `StopGossip`."""

    program: "Program"


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
    """Training side: wait for all learners, however long they take.

    Returns whether any of them is `pausing`.
    """

    pausing: bool = False


LIFECYCLE = (StartGossip, Published, StopGossip, Barrier)
"""The effects of `algorithms.lifecycle`. What a program does between such an effect and
its next one is no section of the algorithm (`simulation.replay`)."""

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
"""A piece of an algorithm: yields effects, is sent their results, returns nothing."""
