"""The module times an algorithm's passes over the parameters against a copy of them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Adam

from accelerator.clock import seconds
from espnet_distopt.algorithms.adasum import Shard, coefficients, cut
from espnet_distopt.algorithms.block.compression import average_changes
from espnet_distopt.algorithms.block.filter import BlockFilter
from espnet_distopt.algorithms.block.moments import extrapolate
from espnet_distopt.algorithms.block.options import BmufConfig
from espnet_distopt.algorithms.block.part import BlockSummary
from espnet_distopt.algorithms.block.part import cut as cut_model
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core.layout import Slot
from espnet_distopt.core.learner import Learner
from espnet_distopt.optimizers.consistent import correct

TENSORS = 50
"""The number of parameter tensors, all of one size."""

VECTORS = 8
"""The number of vectors that Adasum combines."""


class Vectors(nn.Module):
    """A model of some vectors, which have gradients."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        rows = torch.randn(TENSORS, size // TENSORS, device=device)
        self.x = nn.ParameterList([nn.Parameter(row.clone()) for row in rows])
        for parameter in self.x:
            parameter.grad = torch.randn_like(parameter)


def stepping(size: int, device: torch.device, fused: bool, batches: int) -> Adam:
    """Return an Adam that has made a step, corrected for some batches."""
    optimizer = Adam(Vectors(size, device).parameters(), 1e-6, fused=fused)
    optimizer.step()
    if batches > 1:
        assert correct(optimizer, batches)
    return optimizer


def adasum(size: int, device: torch.device) -> Callable[[], object]:
    """Return Adasum's arithmetic of a learner: `VECTORS` times its share of a model."""
    length, each = size // VECTORS, size // TENSORS
    block = torch.randn(VECTORS, length, device=device)
    places = [(n * each, (n + 1) * each) for n in range(TENSORS)]
    slots = [Slot(a, b, torch.Size([b - a]), 0) for a, b in places]
    shard = Shard(block, cut(slots, 0, length, VECTORS, block.device), TENSORS)

    def combine() -> None:
        shard.begin()
        shard.see(length)
        shard.combine(coefficients(shard.matrices), block[0], length)

    return combine


def passes(
    size: int, device: torch.device
) -> dict[str, tuple[Callable[[], object], float]]:
    """Return what is timed: name -> (function, tensors (P,) that it must move).

    Args:
        size: the number of parameters, P.
        device: where they are.
    """
    model = Vectors(size, device)
    learner = Learner(model, Adam(model.parameters()), 0, 2)
    params = learner.params
    rule = BmufConfig().rule(2)
    block = BlockFilter(rule, cut_model(learner, 1)[0])
    summary = BlockSummary(0.0, 8.0, 0.0, 0.0)
    mean, other = params.clone(), params.clone()
    snapshot = Snapshot(learner)

    def message() -> None:
        next(average_changes(params, block.block_start, None))

    def publish() -> None:
        snapshot._pending = snapshot.spare()
        snapshot.publish()

    step = partial(stepping, size, device)
    return {
        "a copy": (partial(other.copy_, params), 2),
        "Adam's step": (step(fused=False, batches=1).step, 7),
        "Adam's step, corrected": (step(fused=False, batches=4).step, 15),
        "Adam's step, fused": (step(fused=True, batches=1).step, 7),
        "Adam's step, fused, corrected": (step(fused=True, batches=4).step, 15),
        "BMUF: the filter": (partial(block.end_block, mean, rule, summary), 6),
        "BMUF-Adam: a moment": (partial(extrapolate, mean, other, 0.5, 0.9), 4),
        "bfloat16: a message": (message, 3.5),
        "gossip: publish and correct": (publish, 4),
        f"Adasum of {VECTORS}": (adasum(size, device), 2 + 1 / VECTORS),
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
