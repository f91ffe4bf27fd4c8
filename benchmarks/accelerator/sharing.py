"""The module times learners that communicate, by methods and by backends.

Their steps are captured and in bfloat16, as fast as the GPU takes them.

Two learners share a device; or one has it alone, because the other one makes steps that
compute nothing, on the CPU. The first shows what sharing costs, the second what gossip
costs a learner that has a GPU of its own.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import torch
import torch.distributed as dist
from emulated.learners import LearnersFailedError, Namespace, launch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from accelerator.clock import wait
from accelerator.layers import Captured, Network, Size, stepping
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder
from espnet_distopt.session import Session

Figures = dict[str, list[list[tuple[float, float]]]]
"""Method -> for each repeat, seconds and exchanges of a step of each learner; nothing
for those of a repeat that has failed."""

GLOO, NCCL = "gloo", "cpu:gloo,cuda:nccl"
METHODS: dict[str, tuple[str, str, dict[str, object]]] = {
    "no communication": (GLOO, "local_sgd", {"period": 10**6}),
    "adpsgd": (GLOO, "adpsgd", {}),
    "adpsgd, exchange bfloat16": (GLOO, "adpsgd", {"exchange": "bfloat16"}),
    "allreduce, NCCL": (NCCL, "allreduce", {}),
    "DDP, NCCL": (NCCL, "DDP", {}),
}
"""Title -> (backend, algorithm or DDP, options)."""

GOSSIP = ("no communication", "adpsgd", "adpsgd, exchange bfloat16")
PRECISION = torch.bfloat16

PAUSE = 0.02
"""Seconds of a step that computes nothing."""

DONE = "the learner that computes is done"

LIMIT = 60.0
"""Seconds for all steps of a method. They take less than ten, so more is a hang."""

# Learners are forked from a process that has imported what takes them seconds.
get_context("forkserver").set_forkserver_preload(
    [
        "torch._dynamo",
        "espnet_distopt.espnet.models.padded_rnn",
        "espnet_distopt.session",
    ]
)


class Task(NamedTuple):
    """What a learner trains.

    Attributes:
        size: the size of the network and of its batches.
        device: the name of the device.
        name: the algorithm, or DDP.
        options: the algorithm's options.
        steps: the number of steps that are timed.
    """

    size: Size
    device: str
    name: str
    options: dict[str, object]
    steps: int

    def network(self) -> Network:
        """Return the network on its device, the same for all learners."""
        torch.manual_seed(0)
        return Network(PaddedRNNEncoder, self.size).to(self.device)


def learner(
    rank: int, task: Task, done: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Train one learner; return the seconds of a step, and the exchanges of a step."""
    torch.set_num_threads(1)
    size, place, steps = task.size, torch.device(task.device), task.steps
    network = task.network()
    optimizer = SGD(network.parameters(), lr=0.01)
    captured = Captured(network)
    if task.name == "DDP":
        averaged = DistributedDataParallel(captured)
        step = stepping(averaged, size, place, PRECISION, None, optimizer)
        return _timed(step, place, steps), 0.0
    with Session(network, optimizer, task.name, **task.options) as session:
        step = stepping(captured, size, place, PRECISION, session, optimizer)
        session.barrier()
        seconds = _timed(step, place, steps, session.metrics)
        done()
        exchanges = session.metrics().get("exchanges", 0.0)
    return seconds, exchanges / steps


def beside(rank: int, task: Task) -> tuple[float, float]:
    """Be the learner that computes, or the one whose steps compute nothing."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        return learner(rank, task, partial(store.set, DONE, ""))
    network = task._replace(device="cpu").network()
    optimizer = SGD(network.parameters(), lr=0.0)
    with Session(network, optimizer, task.name, **task.options) as session:
        session.barrier()
        while not store.check([DONE]):
            time.sleep(PAUSE)
            session.step()
    return 0.0, 0.0


def _timed(
    step: Callable[[], None],
    place: torch.device,
    steps: int,
    begin: Callable[[], object] = dist.barrier,
) -> float:
    """Return the seconds of a step, after as many others, and after `begin`.

    The first exchange takes longest: it pins memory as large as two models.
    """
    for _ in range(steps):
        step()
    wait(place)
    begin()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait(place)
    return (time.perf_counter() - begun) / steps


def measure(
    size: Size,
    device: torch.device,
    steps: int,
    figures: Figures,
    methods: Iterable[str],
    function: Callable[..., tuple[float, float]],
) -> None:
    """Add a repeat of methods to the figures of learners, each of which is a function.

    On a CPU there is no NCCL. A method that fails is named on stderr. Of learners
    `beside` another, only that one counts.
    """
    for title in methods:
        backend, name, options = METHODS[title]
        task = Task(size, str(device), name, options, steps)
        if device.type == "cuda" or backend == GLOO:
            called = _by_nccl if backend == NCCL else function
            found = _launched(title, called, task)
            figures.setdefault(title, []).append(
                found[:1] if function is beside else found
            )


def _launched(
    title: str, function: Callable[..., object], task: Task
) -> list[tuple[float, float]]:
    try:
        return launch([Namespace()] * 2, function, task, timeout=LIMIT)
    except LearnersFailedError as error:
        print(f"{title}: failed: {error}", file=sys.stderr, flush=True)
        return []


def _by_nccl(rank: int, task: Task) -> tuple[float, float]:
    """Be a learner that NCCL connects, in the place of gloo.

    NCCL refuses two processes of a machine on one GPU. So each one says that it is on a
    machine of its own.
    """
    os.environ["NCCL_HOSTID"] = f"learner{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"
    size = dist.get_world_size()
    store = dist.PrefixStore(NCCL, dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group(NCCL, store=store, rank=rank, world_size=size)
    return learner(rank, task)
