"""The process groups of a driver: one for each tuple of ranks that communicates.

The members of a group make it when they first need it. `torch.distributed.new_group`
cannot be used for that. It names the new group by the number of groups that a process
has made, and if these numbers differ between the members, it never returns.
"""

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.barrier import barrier
from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.watch import Watch

Group = Any
"""A backend of `torch.distributed`, whose published types lack its operations."""

TIMEOUT = timedelta(minutes=30)
"""The time that an operation of a group may take."""

_made: list[Group] = []
"""All groups that this process has made. They live as long as the process does: the
learner that finishes first keeps its connections open, because others may still be
reading from them."""


class Groups:
    """Makes the process groups; all processes construct it together.

    A network operation may take as long as `TIMEOUT`, because a slow learner is not a
    lost one. If a learner is lost, `liveness` ends the waits for it much sooner.

    Args:
        rank: this learner's rank.
        size: number of learners, N.
        watch: the calling thread's connection to the store.

    Attributes:
        everybody: the ranks of all learners.
        watch: explains which learner is lost when an operation of a group has failed.
        messages: a gloo group of all learners, for messages from one to another.
        gossip: a second gloo group of all learners, for the gossip thread. It is
            separate, because a timeout destroys the whole group in which it happens.
    """

    def __init__(self, rank: int, size: int, watch: Watch) -> None:
        self.everybody = tuple(range(size))
        self._rank = rank
        self.watch = watch
        self.messages = self._make("gloo", "all", self.everybody)
        self.gossip = self._make("gloo", "gossip", self.everybody)
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {
            ("gloo", self.everybody): self.messages
        }
        self._nccl = sends_gpu_tensors_by_nccl(dist.get_backend_config())
        if self._nccl:
            self._groups["nccl", self.everybody] = dist.group.WORLD

    def of(self, ranks: tuple[int, ...], tensor: Tensor) -> Group:
        """Return the group of `ranks` for `tensor`, and make it if there is none yet.

        Inside the group ranks count from 0, in the order of `ranks`.

        Args:
            ranks: the ranks of its members, this learner among them.
            tensor: a tensor on the device of those to be sent. The group is of NCCL for
                a GPU's tensors if the default process group uses NCCL, else of gloo.

        Raises:
            PeerLostError: a member has died before the group was made.
            RuntimeError: this learner is not a member.
        """
        key = "nccl" if tensor.is_cuda and self._nccl else "gloo", ranks
        if key not in self._groups:
            if self._rank not in ranks:
                raise RuntimeError(
                    f"learner {self._rank} yields a collective of learners {ranks}, "
                    "and is not one of them"
                )
            name = "-".join(map(str, ranks))
            others = [rank for rank in ranks if rank != self._rank]
            what = f"meeting learners {', '.join(map(str, others))}"
            barrier(self.watch, f"group/{key[0]}/{name}", others, what)
            self._groups[key] = self._make(key[0], name, ranks)
        return self._groups[key]

    def _make(self, backend: str, name: str, ranks: tuple[int, ...]) -> Group:
        make = _nccl if backend == "nccl" else dist.ProcessGroupGloo
        store = PrefixStore(f"group/{backend}/{name}", self.watch.store)
        connections = self.watch.liveness.connections
        with self.watch.asking(f"connecting learners {ranks}"), connections.opening():
            group = make(store, ranks.index(self._rank), len(ranks), TIMEOUT)
        _made.append(group)
        return group


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
