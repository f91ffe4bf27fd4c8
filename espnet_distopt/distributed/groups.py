"""The process groups of a driver: one for each tuple of ranks that communicates.

The members of a group make it when they first need it. `torch.distributed.new_group`
cannot be used for that. It names the new group by the number of groups that a process
has made, and if these numbers differ between the members, it never returns.
"""

import contextlib
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.connections import (
    Connections,
    Ports,
    packed,
    tcp_ports,
    unpacked,
)
from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.made_groups import (
    Made,
    destroy_left,
    keep,
    keep_for_ever,
)
from espnet_distopt.distributed.waiter import Vain, Waiter, in_vain
from espnet_distopt.distributed.watch import Watch

Group = Any
"""A backend of `torch.distributed`, whose published types lack its operations."""

TIMEOUT = timedelta(minutes=30)
"""The time that an operation of a group may take, unless the user has allowed a longer
one in `init_process_group`."""

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

    Args:
        rank: this learner's rank.
        size: number of places, N.
        watch: the calling thread's connection to the store.
        meet: waits for the other learners of a new group.
        whole: whether the default process group connects all learners.

    Attributes:
        everybody: the ranks of all places.
        watch: explains which learner is lost when an operation of a group has failed.
        messages: a gloo group of all learners, for messages from one to another; None
            for a replacement, which others do not wait for.
        waiter: waits for what the training thread cannot go on without.
        beside: waits for operations that go on beside the training.
    """

    def __init__(
        self, rank: int, size: int, watch: Watch, meet: Meet, whole: bool = True
    ) -> None:
        self.everybody = tuple(range(size))
        self._rank = rank
        self._meet = meet
        self.watch = watch
        self._groups: dict[tuple[str, int, tuple[int, ...]], Group] = {}
        self._connections: dict[tuple[int, ...], list[Connections]] = {}
        self._made: list[Made] = []
        self._nccl = sends_gpu_tensors_by_nccl(dist.get_backend_config())
        self.messages: Group | None = None
        self.waiter = Waiter(keep_for_ever)
        self.beside = Waiter(keep_for_ever)
        if not watch.liveness.membership.joining:
            self._connect_all(whole)
        watch.liveness.listeners.append(self._sever_lost)

    def _connect_all(self, whole: bool) -> None:
        own, store = self.watch.liveness.connections, self.watch.store
        with self.watch.asking("connecting all learners"):
            store.set(_ports_key(self._rank), packed(tcp_ports()))
            self.messages = self._make("gloo", "all", self.everybody)
            own.adopt(self._ports_of_others())
        destroy_left()  # All have come, and so have left the sessions before.
        self._groups["gloo", 0, self.everybody] = self.messages
        if self._nccl and whole:
            self._groups["nccl", 0, self.everybody] = dist.group.WORLD

    def _ports_of_others(self) -> list[Ports]:
        """Return the ports that the others have published, all of whom have come."""
        others = [rank for rank in self.everybody if rank != self._rank]
        found = self.watch.store.multi_get([*map(_ports_key, others)])
        return [ports for each in found for ports in unpacked(each)]

    def of(self, ranks: tuple[int, ...], tensor: Tensor) -> Group:
        """Return the group of `ranks` for `tensor`, and make it if there is none yet.

        Inside the group ranks count from 0, in the order of `ranks`. If one of them
        dies, the run ends for the others.

        Args:
            ranks: the ranks of its members, this learner among them.
            tensor: a tensor on the device of those to be sent. The group is of NCCL for
                a GPU's tensors if the default process group uses NCCL, else of gloo.

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
            others = [rank for rank in ranks if rank != self._rank]
            what = f"meeting learners {', '.join(map(str, others))}"
            self._meet(f"group/{backend}/{name}", what, ranks)
            with self.watch.asking(f"connecting learners {ranks}"):
                self._groups[key] = self._make(backend, name, ranks)
        return self._groups[key]

    def among(
        self, members: Members, attempt: str, tensor: Tensor, vain: Vain
    ) -> Group:
        """Return the group of learners that have agreed on being its members.

        It is the one of the collectives before, if the members are the same and none of
        these collectives has failed (`drop`). After the first loss GPU tensors go over
        gloo, because a group of NCCL cannot lose a member.

        Args:
            members: its members, in the same version on all of them.
            attempt: the name of the collective, which no other one has.
            tensor: a tensor on the device of those to be sent.
            vain: says whether it is in vain to wait for the others.
        """
        backend = "nccl" if tensor.is_cuda and self._nccl else "gloo"
        if (backend, members.version, members.ranks) not in self._groups:
            backend = "gloo"
        key = backend, members.version, members.ranks
        if key not in self._groups:
            self._groups[key] = self._make("gloo", attempt, members.ranks, vain)
        return self._groups[key]

    def drop(self, members: Members) -> None:
        """Sever the groups of `members`, whose collective has failed or was aborted."""
        for backend in ("gloo", "nccl"):
            self._groups.pop((backend, members.version, members.ranks), None)
        for connections in self._connections.pop(members.ranks, ()):
            connections.sever()

    def close(self, well: bool) -> None:
        """End the threads that wait for operations of the groups, and let go of them.

        The groups live on (`made_groups`).

        Args:
            well: whether the session has ended well.
        """
        self.waiter.close()
        self.beside.close()
        self._groups.clear()
        self.messages = None
        for made in self._made:
            made.left = well
        self._made.clear()

    def _sever_lost(self) -> None:
        """End the waits in groups that have lost a member."""
        living = set(self.watch.liveness.members.ranks)
        for ranks, groups in tuple(self._connections.items()):
            if not living.issuperset(ranks):
                for connections in groups:
                    connections.sever()

    def _make(
        self, backend: str, name: str, ranks: tuple[int, ...], vain: Vain | None = None
    ) -> Group:
        live = self.watch.liveness
        vain = vain or functools.partial(in_vain, live, ranks)
        own = Connections(live.port)
        self._connections.setdefault(ranks, []).append(own)
        with live.connections.opening(), own.opening():
            # Severing its own connection to the store ends the wait for others.
            store = PrefixStore(f"group/{backend}/{name}", self.watch.store.clone())
        # A death that was noticed before this connection was known has not severed it.
        if (why := vain()) is not None:
            raise RuntimeError(why)
        place = ranks.index(self._rank)
        with live.connections.opening(), own.opening():
            if backend == "nccl":
                group = _nccl(store, place, len(ranks), _time_limit())
            else:
                group = self._gloo(store, place, len(ranks), vain)
        self._made.append(keep(group, own))
        return group

    def _gloo(self, store: Store, place: int, size: int, vain: Vain) -> Group:
        """Return a group of gloo, whose constructor may wait for a dead learner.

        It waits without a connection for those who are to connect to it, so a thread of
        its own does that, which is left behind if one of them is lost.
        """
        limit = _time_limit()
        made = _Construction(lambda: dist.ProcessGroupGloo(store, place, size, limit))
        self.waiter.wait([made], vain)
        return made.group


def _ports_key(rank: int) -> str:
    return f"ports/{rank}"


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

    Args:
        backends: the value of `torch.distributed.get_backend_config()`. That is "nccl",
            or "cpu:gloo,cuda:nccl" if `init_process_group` was called without a
            backend.
    """
    by_device = dict(entry.split(":") for entry in backends.split(",") if ":" in entry)
    return by_device.get("cuda", backends) == "nccl"


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Group:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
