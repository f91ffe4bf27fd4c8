"""The module times two learners on one device, by methods and by backends."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from emulated.learners import Namespace, launch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from accelerator.clock import wait
from accelerator.layers import Network, Size, stepping
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder
from espnet_distopt.session import Session

GLOO, NCCL = "gloo", "cpu:gloo,cuda:nccl"
METHODS: dict[str, tuple[str, str, dict[str, object]]] = {
    "no communication": (GLOO, "local_sgd", {"period": 10**6}),
    "adpsgd": (GLOO, "adpsgd", {}),
    "adpsgd, exchange bfloat16": (GLOO, "adpsgd", {"exchange": "bfloat16"}),
    "bmuf, period 8, gloo": (GLOO, "bmuf", {"period": 8}),
    "bmuf, period 8, NCCL": (NCCL, "bmuf", {"period": 8}),
    "allreduce, gloo": (GLOO, "allreduce", {}),
    "DDP, gloo": (GLOO, "DDP", {}),
    "allreduce, NCCL": (NCCL, "allreduce", {}),
    "DDP, NCCL": (NCCL, "DDP", {}),
}
"""Title -> (backend, algorithm or DDP, options)."""


def learner(
    rank: int,
    size: Size,
    device: str,
    name: str,
    options: dict[str, object],
    steps: int,
) -> tuple[float, float]:
    """Train one learner; return the seconds of a step, and the exchanges of a step."""
    torch.set_num_threads(1)
    place = torch.device(device)
    torch.manual_seed(0)
    network = Network(PaddedRNNEncoder, size).to(place)
    optimizer = SGD(network.parameters(), lr=0.01)
    if name == "DDP":
        averaged = DistributedDataParallel(network)
        step = stepping(averaged, size, place, None, None, optimizer)
        return _timed(step, place, steps), 0.0
    with Session(network, optimizer, name, **options) as session:
        step = stepping(network, size, place, None, session, optimizer)
        session.barrier()
        seconds = _timed(step, place, steps, session.metrics)
        exchanges = session.metrics().get("exchanges", 0.0)
    return seconds, exchanges / steps


def _timed(
    step: Callable[[], None],
    place: torch.device,
    steps: int,
    begin: Callable[[], object] = dist.barrier,
) -> float:
    """Return the seconds of a step, after three, and after `begin`."""
    for _ in range(3):
        step()
    wait(place)
    begin()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait(place)
    return (time.perf_counter() - begun) / steps


def _alone(rank: int, *what: object) -> tuple[float, float]:
    """Be a learner that NCCL takes for the only one on its machine.

    It refuses two processes of a machine on one GPU.
    """
    os.environ["NCCL_HOSTID"] = f"learner{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    return learner(rank, *what)  # type: ignore[arg-type]


def measure(
    size: Size, device: torch.device, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Return, for each method, the figures of both learners; on a CPU without NCCL."""
    return {
        title: launch(
            [Namespace(backend=backend)] * 2,
            _alone,
            size,
            str(device),
            name,
            options,
            steps,
            timeout=600,
        )
        for title, (backend, name, options) in METHODS.items()
        if device.type == "cuda" or backend == GLOO
    }
