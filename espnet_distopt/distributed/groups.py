"""The connections of a driver's collectives: one group for each tuple of ranks.

A group is made by its members, when they first need it. `torch.distributed.new_group`
cannot do that: it names a group that its members make alone by the number of groups
that each of them has, and never comes back where these numbers differ.
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

_made: list[Group] = []
"""Groups live as long as the process: who is through first must not close a connection
that another still reads from."""


class Groups:
    """Makes groups; all processes construct it together.

    A network operation may take `TIMEOUT`: a slow learner is no lost one. When one is
    lost, the wait for it is ended by other means, and soon (`liveness`).

    Args:
        rank: this learner. size: number of learners.
        watch: of the calling thread.

    Attributes:
        everybody: all ranks.
        watch: tells who is lost when an operation of a group has failed.
        messages: a gloo group of all learners, for messages from one to another.
        gossip: another, for the gossip thread: a timeout destroys the group that it
            happens in.
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
        """Return the group of `ranks` for `tensor`: NCCL for a GPU's, where it is used.

        Its ranks count from 0, in the order of `ranks`.

        Raises:
            PeerLostError: one of them has died before the group was made.
            RuntimeError: this learner is not one of them.
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
        backends: `torch.distributed.get_backend_config()`: "nccl", or, where
            `init_process_group` was called without a backend, "cpu:gloo,cuda:nccl".
    """
    by_device = dict(entry.split(":") for entry in backends.split(",") if ":" in entry)
    return by_device.get("cuda", backends) == "nccl"


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Group:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
