"""DiLoCo beside PyTorch's own outer optimizer (docs/algorithms/block.md, LS3)."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from espnet_distopt.algorithms.block.options import DilocoConfig
from espnet_distopt.simulation import Compute, Simulation
from tests.replicas import Point
from tests.virtual import along, points, x


@pytest.mark.parametrize(
    ("options", "momentum", "lr"),
    [({}, 0.9, 0.7), ({"momentum": 0.8, "block_lr": 1.0}, 0.8, 1.0)],
)
@pytest.mark.parametrize("size", [1, 4])
def test_ls3_is_torch_nesterov_sgd_over_adamw(
    size: int, options: dict[str, Any], momentum: float, lr: float
) -> None:
    """Two whole blocks an epoch, and a short one; moments are each learner's own."""
    source = random.Random(0)
    steps = [[source.uniform(-1, 1) for _ in range(21)] for _ in range(size)]
    make = partial(AdamW, weight_decay=0.1)
    options = {"period": 3, "warmup": 0, **options}
    learners = points("diloco", size, lambda m, r: along(m, steps[r]), make, **options)
    simulation = Simulation(learners, Compute(spread=1))
    simulation.start()
    outer = nn.Parameter(torch.tensor([0.25, -0.5], dtype=torch.float64))
    sgd = SGD([outer], lr=lr, momentum=momentum, nesterov=True)
    inner = [Point([0.25, -0.5]) for _ in range(size)]
    adamw = [make(model.parameters(), lr=0.1) for model in inner]
    for step in range(21):
        for model, optimizer, gradients in zip(inner, adamw, steps, strict=True):
            optimizer.zero_grad()
            along(model, gradients)(step)
            optimizer.step()
        if step % 7 in (2, 5, 6):
            outer.grad = outer.detach() - torch.stack([m.x for m in inner]).mean(0)
            outer.grad = outer.grad.detach()
            sgd.step()
            for model in inner:
                model.x.data.copy_(outer.detach())
        if step % 7 == 6:
            simulation.epoch(7)
            for virtual in learners:
                assert x(virtual) == pytest.approx(outer.tolist(), rel=1e-12)
            assert simulation.consensus().tolist() == x(learners[0])


def test_steady_progress_is_sevenfold() -> None:
    """zeta / (1 - eta) = 7 blocks a block, for a block that moves by 1."""
    constant = partial(along, gradients=[-1.0] * 800)
    learners = points("diloco", 2, lambda m, _: constant(m), SGD, period=4, warmup=0)
    for virtual in learners:
        virtual.optimizer.param_groups[0]["lr"] = 0.25
    simulation = Simulation(learners)
    simulation.start()
    simulation.epoch(796)
    before = simulation.consensus()
    simulation.epoch(4)
    assert (simulation.consensus() - before).tolist() == pytest.approx([7, 7], rel=1e-6)


def test_blocks_of_the_warmup_are_plain_averages() -> None:
    steps = [[-1.0] * 6, [-3.0] * 6]
    learners = points(
        "diloco", 2, lambda m, r: along(m, steps[r]), SGD, period=2, warmup=4
    )
    simulation = Simulation(learners)
    simulation.start()
    seen = []
    for _ in range(3):
        simulation.epoch(2)
        seen.append(simulation.consensus()[0].item() - 0.25)
    # lr 0.1, mean gradient -2: 0.4 a block; then 0.7 (0.4) and what momentum adds
    update = 0.9 * 0.4 + 0.7 * 0.4
    assert seen == pytest.approx([0.4, 0.8, 0.8 + 1.9 * update], rel=1e-12)


def test_the_defaults_are_the_published_ones() -> None:
    config = DilocoConfig()
    assert (config.period, config.momentum, config.block_lr) == (500, 0.9, 0.7)
    assert config.rule(8).moments == "local"
