"""The module times an algorithm's passes over the parameters against a copy of them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Adam

from accelerator.clock import seconds
from espnet_distopt.algorithms.block.block_filter import BlockFilter
from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.bmuf_options import BmufConfig
from espnet_distopt.algorithms.block.extrapolation import extrapolate
from espnet_distopt.algorithms.block.message import Agreed
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core.learner import Learner


class Vector(nn.Module):
    """A model that is one vector."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(size, device=device))


def passes(
    size: int, device: torch.device
) -> dict[str, tuple[Callable[[], object], float]]:
    """Return what is timed: name -> (function, tensors (P,) that it must move).

    Args:
        size: the number of parameters, P.
        device: where they are.
    """
    model = Vector(size, device)
    learner = Learner(model, Adam(model.parameters()), 0, 2)
    params = learner.params
    rule = BmufConfig().rule(2)
    block = BlockFilter(rule, params, 8, None)
    agreed = Agreed(0.0, 8.0, False, [], [])
    mean, other = params.clone(), params.clone()
    start = BlockStart(block.theta, block.delta, 0.5)
    snapshot = Snapshot(learner)

    def publish() -> None:
        snapshot._pending = snapshot.spare()
        snapshot.publish()

    return {
        "a copy": (partial(other.copy_, params), 2),
        "BMUF: the filter": (partial(block.end_block, mean, rule, agreed), 6),
        "BMUF-Adam: a moment": (partial(extrapolate, mean, other, 0.5, 0.9), 4),
        "bfloat16: a message": (partial(start.changes, params), 3.5),
        "gossip: publish and correct": (publish, 4),
    }


def measure(
    size: int, device: torch.device, repeats: int
) -> dict[str, dict[str, object]]:
    """Return, for each pass, its seconds and its share of the copy's bandwidth."""
    found: dict[str, dict[str, object]] = {}
    bandwidth = 0.0
    for name, (run, tensors) in passes(size, device).items():
        times = seconds(run, device, repeats, calls=5)
        rate = 4 * size * tensors / sorted(times)[len(times) // 2]
        bandwidth = bandwidth or rate
        found[name] = {"seconds": times, "rate": rate, "share": rate / bandwidth}
    return found
