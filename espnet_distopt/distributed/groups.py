"""The process groups of a driver: one for each tuple of ranks that communicates.

The members of a group make it when they first need it. `torch.distributed.new_group`
cannot be used for that. It names the new group by the number of groups that a process
has made, and if these numbers differ between the members, it never returns.

A group outlives its session: the learner that finishes first keeps its connections
open, because others may still be reading from them. Nobody is any more when all have
begun the next session, which destroys the groups, or when the process ends.

At the end of the process all groups are destroyed while Python still runs. A thread of
gloo drops the tensor of an operation when the operation is complete, and needs Python's
lock for that. It may be late, on a busy machine. If Python has begun to end by then, it
aborts the process. So the end waits for the threads of gloo. An error may have left
operations under way, which end when their connections are severed; but gloo forgets
some of them (see `gloo`), and then the process ends without its threads.
"""

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.connections import (
    Connections,
    KeptStore,
    keeps_store,
    packed,
    ports_of,
    sockets,
    unpacked,
)
from espnet_distopt.distributed.gloo import (
    GRACE,
    Vain,
    Waiter,
    host_for_gloo,
    in_vain,
    make_group,
)
from espnet_distopt.distributed.liveness import Store, machine_of
from espnet_distopt.distributed.nccl import NcclGroup
from espnet_distopt.distributed.watch import Watch


@dataclass
class Made:
    """A group that this process has made; `left`: its session has ended well here."""

    group: Any
    connections: Connections
    left: bool = False


_made: list[Made] = []
"""The groups that are not destroyed."""

_JOIN = 30.0
"""Seconds for which the end of the process waits for the threads of gloo."""


_end = threading.Event()
_destroyer: threading.Thread | None = None
"""Destroys the groups at the end of the process, when no thread can be started."""


def _destroy_at_end() -> None:
    _end.wait()
    _destroy(_made)


def keep(group: Any, connections: Connections) -> Made:
    """Keep a group beyond its session, and return what is known of it."""
    global _destroyer
    if _destroyer is None:
        _destroyer = threading.Thread(
            target=_destroy_at_end, name="distopt-destroyer", daemon=True
        )
        _destroyer.start()
    _made.append(Made(group, connections))
    return _made[-1]


def keep_for_ever() -> None:
    """Never destroy the groups, one of which has an operation that never ends.

    gloo's destructor would wait for the thread that carries it out.
    """
    for made in _made:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.group))


def destroy_left() -> None:
    """Destroy the groups of the sessions that all learners have left.

    gloo's destructor waits for operations that an end within an epoch has left under
    way. They fail when another learner does the same. If gloo forgets one, the thread
    that waits for it is left behind.
    """
    left = [made for made in _made if made.left]
    _made[:] = [made for made in _made if not made.left]
    destroyer = threading.Thread(target=_destroy, args=(left,), daemon=True)
    destroyer.start()
    destroyer.join(GRACE)


def _destroy(groups: list[Made]) -> None:
    """Destroy groups, and remove them from the list."""
    while groups:
        made = groups.pop()
        if isinstance(made.group, NcclGroup):
            try:
                made.group.end(made.left)
            except RuntimeError as error:
                logging.getLogger(__name__).warning(
                    f"a group of NCCL did not end well: {error}"
                )


@atexit.register
def _join_threads() -> None:
    # No variable of this thread may keep a group, which would be destroyed by it then.
    for connections in [made.connections for made in _made if _is_severed(made)]:
        connections.sever()
    if _destroyer is not None:
        _end.set()
        _destroyer.join(_JOIN)


def _is_severed(made: Made) -> bool:
    """Return whether the end severs a group: one of NCCL may still have to send."""
    return not (made.left and isinstance(made.group, NcclGroup))


# A forked child has the groups without their threads.
os.register_at_fork(after_in_child=lambda: atexit.unregister(_join_threads))


Group = Any
"""A backend of `torch.distributed`, whose published types lack its operations."""

TIMEOUT = timedelta(minutes=30)
"""The time that an operation of a group may take, unless the user has allowed a longer
one in `init_process_group`."""

ALL = "all"
"""The name of the group of all learners, which a session makes first."""

Meet = Callable[[str, str, tuple[int, ...]], Members]
"""Waits for the learners of a new group (`Meetings.meet`)."""


class _Construction:
    """A group that is being made, for which a `Waiter` waits like for an operation."""

    group: Group = None

    def __init__(self, make: Callable[[], Group]) -> None:
        self._make = make

    def wait(self) -> None:
        """Make the group."""
        self.group = self._make()


class Groups:
    """Makes the process groups; all processes construct it together.

    A network operation may take as long as `TIMEOUT`, because a slow learner is not a
    lost one. If a learner is lost, `liveness` ends the waits for it much sooner.

    Attributes:
        everybody: the ranks of all places.
        messages: a gloo group of all learners, for messages from one to another; None
            for a replacement, which others do not wait for.
        waiter: waits for what the training thread cannot go on without.
        beside: waits for operations that go on beside the training.
    """

    def __init__(self, rank: int, size: int, watch: Watch, meet: Meet) -> None:
        self.everybody = tuple(range(size))
        self._rank = rank
        self._meet = meet
        self.watch = watch
        self._groups: dict[tuple[str, int, tuple[int, ...]], Group] = {}
        self._severed_with: dict[tuple[int, ...], list[Connections | NcclGroup]] = {}
        self._made: list[Made] = []
        self._nccl = sends_gpu_tensors_by_nccl(dist.get_backend_config())
        self._unharmed: Members | None = Members.everybody(size)
        self.messages: Group | None = None
        self.waiter = Waiter(keep_for_ever)
        self.beside = Waiter(keep_for_ever)
        port = watch.liveness.port
        self._kept = KeptStore(port) if keeps_store(port) else None
        if not watch.liveness.membership.joining:
            self._connect_all()
        watch.liveness.listeners.append(self._sever_lost)

    def _connect_all(self) -> None:
        with self.watch.asking("connecting all learners"):
            self.messages = self._make("gloo", ALL, self.everybody)
        destroy_left()  # All have come, and so have left the sessions before.
        self._groups["gloo", 0, self.everybody] = self.messages

    @functools.cached_property
    def _host(self) -> str | None:
        """The address at which groups of gloo listen, for the training thread.

        A replacement asks for it when all have begun, and not before.
        """
        return host_for_gloo(self.watch.store, self._machines)

    def _machines(self) -> list[str]:
        """Return the machines of all learners; wait for those that have not begun."""
        membership, what = self.watch.liveness.membership, "connecting all learners"
        known = [keys.process(membership.name(rank)) for rank in self.everybody]
        return [machine_of(self.watch.wait_for(each, what)) for each in known]

    def of(self, ranks: tuple[int, ...], tensor: Tensor) -> Group:
        """Return the group of `ranks` for `tensor`, and make it if there is none yet.

        Inside the group ranks count from 0, in the order of `ranks`. If one of them
        dies, the run ends for the others. The group is of NCCL for a GPU's tensors if
        the default process group uses NCCL, else of gloo.

        Raises:
            PeerLostError: a member has died before the group was made.
            RuntimeError: this learner is not a member.
        """
        backend = "nccl" if tensor.is_cuda and self._nccl else "gloo"
        key = backend, 0, ranks
        if key not in self._groups:
            if self._rank not in ranks:
                raise RuntimeError(
                    f"learner {self._rank} yields a collective of learners {ranks}, "
                    "and is not one of them"
                )
            name = "-".join(map(str, ranks))
            meeting = keys.group(backend, name)
            others = [rank for rank in ranks if rank != self._rank]
            what = f"meeting learners {', '.join(map(str, others))}"
            self._meet(meeting, what, ranks)
            with self.watch.asking(f"connecting learners {ranks}"):
                self._groups[key] = self._make(backend, name, ranks, tensor.device)
        return self._groups[key]

    def among(
        self, members: Members, attempt: str, tensor: Tensor, vain: Vain
    ) -> Group:
        """Return the group of learners that have agreed on being its members.

        It is the one of the collectives before, if the members are the same, in the
        same version, and none of these collectives has failed (`drop`). After the first
        failure GPU tensors go over gloo, also if all learners live: NCCL may fail where
        gloo does not. `attempt` is a name of the collective that no other one has.
        """
        by_nccl = tensor.is_cuda and self._nccl and members == self._unharmed
        backend = "nccl" if by_nccl else "gloo"
        key = backend, members.version, members.ranks
        if key not in self._groups:
            self._groups[key] = self._make(
                backend, attempt, members.ranks, tensor.device, vain
            )
        return self._groups[key]

    def drop(self, members: Members) -> None:
        """Sever the groups of `members`, whose collective has failed or was aborted.

        Raises:
            RuntimeError: NCCL still writes to the tensor of the collective.
        """
        self._unharmed = None
        self._groups.pop(("gloo", members.version, members.ranks), None)
        group = self._groups.pop(("nccl", members.version, members.ranks), None)
        for each in self._severed_with.pop(members.ranks, ()):
            each.sever()
        if group is not None:
            group.abort()

    def close(self, well: bool) -> None:
        """End the threads that wait for operations of the groups, and let go of them.

        If the session has ended well, the groups live on until all have begun the next.
        """
        self.waiter.close()
        self.beside.close()
        self._groups.clear()
        self.messages = None
        for made in self._made:
            made.left = well
            if not well and isinstance(made.group, NcclGroup):
                made.group.sever()
        self._made.clear()

    def _sever_lost(self) -> None:
        """End the waits in groups that have lost a member."""
        living = set(self.watch.liveness.members.ranks)
        for ranks, severed in tuple(self._severed_with.items()):
            if not living.issuperset(ranks):
                for each in tuple(severed):
                    each.sever()

    def _make(
        self,
        backend: str,
        name: str,
        ranks: tuple[int, ...],
        device: torch.device | None = None,
        vain: Vain | None = None,
    ) -> Group:
        """Return a new group.

        Its constructor waits for the others, and may wait for a dead one without a
        connection that could be severed. So a thread of its own does that, which is
        left behind if one of them is lost.
        """
        live = self.watch.liveness
        vain = vain or functools.partial(in_vain, live, ranks)
        own = Connections(live.port)
        self._severed_with.setdefault(ranks, []).append(own)
        with live.connections.opening(), own.opening():
            # Severing its own connection to the store ends the wait for others.
            store = PrefixStore(keys.group(backend, name), self.watch.store.clone())
        # A death that was noticed before this connection was known has not severed it.
        if (why := vain()) is not None:
            raise RuntimeError(why)
        host = self._host if backend == "gloo" else None
        place, limit = (ranks.index(self._rank), len(ranks)), _time_limit()

        def build() -> Group:
            if backend == "nccl":
                assert device is not None
                return NcclGroup(store, *place, device, limit)
            return make_group(store, *place, limit, host)

        made = _Construction(lambda: self._adopted(build, store, name, ranks, own))
        self.waiter.wait([made], vain)
        if isinstance(made.group, NcclGroup):
            self._severed_with[ranks].append(made.group)
        self._made.append(keep(made.group, own))
        # Nor has one that was noticed before those to the others were known.
        if (why := vain()) is not None:
            raise RuntimeError(why)
        return made.group

    def _adopted(
        self,
        build: Callable[[], Group],
        store: Store,
        name: str,
        ranks: tuple[int, ...],
        own: Connections,
    ) -> Group:
        """Build a group, and adopt its connections to others.

        With the group of all, those are adopted that were open before, too. They are
        the default process group's: a user's own collectives wait in them for learners,
        just as the driver's do.
        """
        before = sockets()
        group = build()
        found = sockets()
        shown = found if name == ALL else found - before
        store.set(keys.ports(self._rank), packed(ports_of(shown)))
        others = [keys.ports(rank) for rank in ranks if rank != self._rank]
        theirs = [p for each in store.multi_get(others) for p in unpacked(each)]
        own.adopt(found - before, theirs)
        self.watch.liveness.connections.adopt(shown, theirs)
        return group


def _time_limit() -> timedelta:
    """Return the longer one of `TIMEOUT` and the default process group's limits."""
    world: Any = dist.group.WORLD
    limits: list[timedelta] = [TIMEOUT]
    for device in world._device_types:
        # Backends other than gloo and NCCL may have no options.
        with contextlib.suppress(AttributeError, RuntimeError):
            limits.append(world._get_backend(device).options._timeout)
    return max(limits)


def sends_gpu_tensors_by_nccl(backends: str) -> bool:
    """Return whether the default process group takes GPU tensors by NCCL.

    `torch.distributed.get_backend_config()` returns "nccl", or "cpu:gloo,cuda:nccl" if
    `init_process_group` was called without a backend.
    """
    by_device = dict(entry.split(":") for entry in backends.split(",") if ":" in entry)
    return by_device.get("cuda", backends) == "nccl"
