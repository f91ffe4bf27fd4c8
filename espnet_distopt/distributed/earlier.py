"""The sessions of a process: they are numbered, and refused after a death.

All learners begin their sessions in the same order, and number them alike. Each session
has keys of its own in the store, and so a list of members of its own.

A process that was started in the place of a dead learner joins the sessions that the
dead one had begun, or is refused if the others have left them. Later sessions it begins
as all others do, and so counts there as the first of its rank. Whoever has died and was
not replaced can begin none, and so the others are refused the next session: they would
wait for it. One may also die between two sessions, when nobody hears heartbeats. Those
who wait for it then hear that from the launcher, which knows it as the process that it
was in the session before.
"""

import itertools
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.core.protocols import Membership, learner_name, read_members
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.distributed.liveness import has_left, processes
from espnet_distopt.errors import InputError

_serial = itertools.count()
"""Numbers the sessions of a process: their keys in the store must not meet."""


_Begun = tuple[Any, Membership]
"""A session that has begun: its part of the store, and its members as known here."""

_sessions: WeakKeyDictionary[Any, list[_Begun]] = WeakKeyDictionary()
"""The sessions of this process, by the store of their default process group."""


class Opening(NamedTuple):
    """A session that is about to begin.

    Attributes:
        store: its part of the store.
        incarnation: how often a learner of this rank had begun it before.
        before: rank -> the process of this learner in the session before; empty if
            there was none.
    """

    store: Any
    incarnation: int
    before: dict[int, str]


def next_session(rank: int) -> Opening:
    """Return the next session of this process, which is the learner of `rank`.

    Raises:
        InputError: a learner has died in an earlier session, and was not replaced.
    """
    default = dist.distributed_c10d._get_default_store()
    earlier = _sessions.get(default, [])
    if dead := sorted({rank for begun in earlier for rank in _dead(*begun)}):
        names = ", ".join(f"learner {each}" for each in dead)
        raise InputError(
            f"learner {rank}: a session needs all learners, and an earlier one has "
            f"lost {names}: start all learners again"
        )
    store, number = PrefixStore(keys.session(next(_serial)), default), incarnation()
    if earlier and not any(
        store.check([keys.beat(learner_name(rank, n))]) for n in range(number)
    ):
        number = 0
    return Opening(store, number, processes(*earlier[-1]) if earlier else {})


def keep(opening: Opening, membership: Membership) -> None:
    """Remember a session that has begun, for those after it."""
    default = dist.distributed_c10d._get_default_store()
    _sessions.setdefault(default, []).append((opening.store, membership))


def _dead(store: Any, membership: Membership) -> list[int]:
    """Return who has died in a session; one that has only left it may live."""
    absent = {*range(membership.size)} - read_members(store).living.keys()
    return [rank for rank in absent if not has_left(store, membership.name(rank))]
