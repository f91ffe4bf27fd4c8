"""The module times two learners on one device, with gossip and without."""

import time

import torch
from emulated.learners import Namespace, launch
from torch.optim import SGD

from accelerator.clock import wait
from accelerator.layers import Network, Size, stepping
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder
from espnet_distopt.session import Session

METHODS = {
    "no communication": ("local_sgd", {"period": 10**6}),
    "adpsgd": ("adpsgd", {}),
    "adpsgd, exchange bfloat16": ("adpsgd", {"exchange": "bfloat16"}),
    "bmuf, period 8": ("bmuf", {"period": 8}),
    "allreduce": ("allreduce", {}),
}


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
    with Session(network, optimizer, name, **options) as session:
        step = stepping(network, size, place, None, session, optimizer)
        for _ in range(3):
            step()
        session.barrier()
        session.metrics()
        wait(place)
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        wait(place)
        spent = time.perf_counter() - begun
        exchanges = session.metrics().get("exchanges", 0.0)
    return spent / steps, exchanges / steps


def measure(
    size: Size, device: torch.device, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Return, for each method, the figures of both learners."""
    return {
        title: launch(
            [Namespace()] * 2,
            learner,
            size,
            str(device),
            name,
            options,
            steps,
            timeout=600,
        )
        for title, (name, options) in METHODS.items()
    }
