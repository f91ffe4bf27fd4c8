"""Effects: what an algorithm yields when it must talk to other learners.

An algorithm is a generator. It yields an effect, a driver carries the effect out, and
the result comes back as the value of the `yield`. A learner has a training side, which
runs its steps, and may have a gossip side, which runs beside them. Between two yields a
generator is atomic: a driver never runs both sides of one learner at the same time.
Only the work of `RunInBackground` is an exception.

The collectives are defined in `collectives`, and are imported from here as all other
effects are.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.collectives import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Broadcast,
    Collective,
    GroupCollective,
    NeighbourAllGather,
    Ranks,
    Work,
)

__all__ = [
    "LIFECYCLE",
    "AllGather",
    "AllReduceMean",
    "AllToAll",
    "AwaitGossip",
    "AwaitInvitation",
    "AwaitStep",
    "Barrier",
    "Begin",
    "Broadcast",
    "Collective",
    "Effect",
    "Exchange",
    "GroupCollective",
    "Invite",
    "NeighbourAllGather",
    "Program",
    "Published",
    "Ranks",
    "Retire",
    "RunInBackground",
    "StartGossip",
    "StopGossip",
    "Wait",
    "Work",
]


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
