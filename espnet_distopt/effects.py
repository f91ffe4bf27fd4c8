"""Effects: what an algorithm yields when it must talk to other learners.

An algorithm is a generator. It yields an effect, a driver carries the effect out,
and the result comes back as the value of the `yield`. Between two yields a generator
is atomic: a driver never runs the training side and the gossip side of one learner
at the same time. Costs are bytes sent by one learner, for a tensor of n bytes and N
learners.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class AllReduceMean:
    """Replace `tensor` by its mean over all learners, in place; returns it.

    Every learner gets the same bits. One learner: `tensor` is left untouched, bit for
    bit. Cost: 2n(N-1)/N.
    """

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Overwrite `tensor` by learner 0's, in place; returns it. Cost: about n."""

    tensor: Tensor


@dataclass(frozen=True)
class Invite:
    """Ask `peer` for an exchange; returns at once. The peer will `Exchange` with us."""

    peer: int


@dataclass(frozen=True)
class Retire:
    """Tell `peer` that this learner will not invite it any more."""

    peer: int


@dataclass(frozen=True)
class AwaitInvitation:
    """Wait for an invitation from one of `peers`; returns the rank that sent it.

    Returns None once every one of `peers` has retired.
    """

    peers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Send `tensor` to `peer` and return what the peer sent. Cost: n.

    Both ends must yield it. `tensor` must not change until the result is back. The
    result belongs to the algorithm until its next yield.
    """

    peer: int
    tensor: Tensor


@dataclass(frozen=True)
class AwaitStep:
    """Gossip side: wait until the training side has published again.

    Returns True, or False when the training side has ended (an epoch, or for good).
    """


@dataclass(frozen=True)
class AwaitGossip:
    """Training side: wait until the gossip side has made progress."""


Effect = (
    AllReduceMean
    | Broadcast
    | Invite
    | Retire
    | AwaitInvitation
    | Exchange
    | AwaitStep
    | AwaitGossip
)

Program = Generator[Effect, Any, None]
"""A piece of an algorithm: yields effects, is sent their results, returns nothing."""
