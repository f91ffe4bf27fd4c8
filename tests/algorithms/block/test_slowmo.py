"""SlowMo and DiLoCo beside their published recursions (docs/algorithms/block.md, LS2
and LS3)."""

import copy
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from espnet_distopt.algorithms.block.options import DilocoConfig
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from tests.replicas import Point
from tests.virtual import along, points, started, x

Rates = Callable[[int, int], float]
"""Learning rate of (step, group)."""


class Pair(nn.Module):
    """Two vectors, of which each is a parameter group."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.25, -0.5], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64))

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.a]}, {"params": [self.b]}]


def gradient(rank: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(5, generator=source, dtype=torch.float64)


def pairs(
    size: int, rates: Rates, make: Any = SGD, name: str = "slowmo", **options: Any
) -> Simulation:
    learners = []
    if name == "slowmo":  # As published, momentum is there from the first block.
        options = {"warmup": 0, "second_moment": "local", **options}
    for rank in range(size):
        model = Pair()
        optimizer = make(model.groups(), lr=rates(0, 0))
        descend = _descent(model, optimizer, rates, rank)
        learners.append(
            VirtualLearner(model, optimizer, descend, name, rank, size, **options)
        )
    simulation = started(learners, Compute(spread=1))
    return simulation


def _descent(
    model: Pair, optimizer: Optimizer, rates: Rates, rank: int
) -> Callable[[int], float]:
    def descend(step: int) -> float:
        for index, group in enumerate(optimizer.param_groups):
            group["lr"] = rates(step, index)
        model.a.grad, model.b.grad = gradient(rank, step).split([2, 3])
        return 0.0

    return descend


def start() -> Tensor:
    return torch.cat([p.detach() for p in Pair().parameters()])


def per_element(rates: Rates, step: int) -> Tensor:
    values = [rates(step, 0)] * 2 + [rates(step, 1)] * 3
    return torch.tensor(values, dtype=torch.float64)


def oracle(
    size: int, rates: Rates, blocks: Sequence[Sequence[int]], beta: float, alpha: float
) -> Tensor:
    """The paper's recursion with plain SGD inside, in steps given block by block."""
    x, u = start(), torch.zeros(5, dtype=torch.float64)
    for block in blocks:
        ends = [x.clone() for _ in range(size)]
        for step in block:
            for rank, end in enumerate(ends):
                end -= per_element(rates, step) * gradient(rank, step)
        lr = torch.stack([per_element(rates, step) for step in block]).mean(0)
        u = beta * u + (x - torch.stack(ends).mean(0)) / lr
        x = x - alpha * lr * u
    return x


def blockwise(first: Sequence[float], second: Sequence[float], period: int) -> Rates:
    return lambda step, group: (first, second)[group][step // period]


@pytest.mark.parametrize("alpha", [1.0, 0.7])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ls3_is_the_published_recursion_with_changing_rates(
    size: int, alpha: float
) -> None:
    """The groups' learning rates change between blocks, each in its own way."""
    rates = blockwise([0.1, 0.2, 0.05, 0.05, 1e-4], [1.0, 0.3, 0.3, 2.0, 0.7], 3)
    simulation = pairs(size, rates, period=3, momentum=0.6, block_lr=alpha)
    blocks = [range(first, first + 3) for first in range(0, 15, 3)]
    for count in range(1, 6):
        simulation.epoch(3)
        expected = oracle(size, rates, blocks[:count], 0.6, alpha)
        for virtual in simulation.learners:
            torch.testing.assert_close(
                virtual.learner.params, expected, rtol=1e-12, atol=1e-14
            )
        assert torch.equal(
            simulation.consensus(), simulation.learners[0].learner.params
        )


def test_momentum_sets_in_by_itself_while_rates_change() -> None:
    """Delta is that of the rate of the block before it, plain or not."""
    period, horizon, beta, alpha = 3, 1000.0, 0.6, 0.7
    rates = blockwise([0.1, 0.2, 0.05, 0.05, 0.3] * 2, [1.0, 0.3, 0.3, 2.0, 0.7] * 2, 3)
    simulation = pairs(
        3, rates, period=period, momentum=beta, block_lr=alpha, warmup=None
    )
    x, delta, last = start(), torch.zeros(5, dtype=torch.float64), torch.ones(5)
    agreeing, filtered = 0, 0
    for first in range(0, 30, period):
        mean = x.clone()
        for step in range(first, first + period):
            each = torch.stack([gradient(rank, step) for rank in range(3)])
            mean -= per_element(rates, step) * each.mean(0)
        agreeing = agreeing + period if (mean - x) @ delta > 0 else 0
        part = -math.expm1(-agreeing / horizon)
        lr, change = per_element(rates, first), mean - x
        delta = part * beta * delta * lr / last + (1 + part * (alpha - 1)) * change
        x, last = x + delta, lr
        filtered += agreeing > 0
        simulation.epoch(period)
        torch.testing.assert_close(simulation.consensus(), x, rtol=1e-12, atol=1e-14)
    assert 2 < filtered < 8


def restarts(step: int, group: int) -> float:
    """Cosine annealing over 24 steps, which begins anew."""
    return (0.1, 0.3)[group] * math.cos(math.pi / 2 * (step % 24) / 24) ** 2


def test_a_warm_restart_makes_no_huge_step() -> None:
    """The rates of the last block are far below those of the next, but not 0."""
    simulation = pairs(2, restarts, period=8)
    blocks = [range(first, first + 8) for first in range(0, 56, 8)]
    for count in range(1, 8):
        before = simulation.consensus()
        simulation.epoch(8)
        assert (simulation.consensus() - before).abs().max() < 10
        expected = oracle(2, restarts, blocks[:count], 0.5, 1.0)
        torch.testing.assert_close(
            simulation.consensus(), expected, rtol=1e-12, atol=1e-14
        )


def constant(step: int, group: int) -> float:
    return 0.1


def test_a_constant_rate_is_classical_block_momentum_bit_for_bit() -> None:
    """However short the blocks are, and of however unequal numbers of updates."""
    options = {"period": 4, "momentum": 0.5, "moments": "reset"}
    found = []
    for name, more in (("slowmo", {}), ("bmuf", {"nesterov": False, "warmup": 0})):
        simulation = pairs(3, constant, name=name, **options, **more)
        simulation.epoch([7, 2, 4])
        simulation.epoch([3, 1, 5])
        found.append(simulation.consensus())
    assert torch.equal(*found)


@pytest.mark.parametrize("pausing", [True, False])
def test_a_run_that_is_resumed_knows_the_rates(pausing: bool) -> None:
    """Those of the last block, and those of the block within which it was stopped."""
    whole, resumed = (pairs(2, restarts, Adam, period=8) for _ in range(2))
    whole.epoch(21, pausing=pausing)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for simulation in (whole, resumed):
        simulation.epoch(9)
    assert torch.equal(whole.consensus(), resumed.consensus())


@pytest.mark.parametrize("moments", ["reset", "local", "average"])
def test_ls2_period_1_is_sgd_with_momentum(moments: str) -> None:
    """PyTorch's momentum buffer does not depend on the learning rate, either."""
    rates = blockwise([0.1, 0.4, 0.4, 0.02, 0.3], [1.0, 0.3, 0.3, 2.0, 0.7], 2)
    simulation = pairs(4, rates, period=1, momentum=0.8, moments=moments)
    simulation.epoch(10)
    plain = Pair()
    optimizer = SGD(plain.groups(), lr=0.1, momentum=0.8)
    for step in range(10):
        for index, group in enumerate(optimizer.param_groups):
            group["lr"] = rates(step, index)
        mean = torch.stack([gradient(rank, step) for rank in range(4)]).mean(0)
        plain.a.grad, plain.b.grad = mean.split([2, 3])
        optimizer.step()
    expected = nn.utils.parameters_to_vector(plain.parameters())
    torch.testing.assert_close(simulation.consensus(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("silent", [[0], [1], [3], [0, 1], [1, 2], [0, 3], [3, 4]])
def test_a_rate_of_0_keeps_the_buffer_and_the_model(silent: list[int]) -> None:
    """Blocks without a learning rate are as if they had never been."""
    first, second = [0.1, 0.2, 0.05, 0.08, 0.3], [1.0, 0.3, 0.3, 2.0, 0.7]
    rates = blockwise(
        [0.0 if block in silent else lr for block, lr in enumerate(first)],
        [0.0 if block in silent else lr for block, lr in enumerate(second)],
        2,
    )
    simulation = pairs(2, rates, period=2, momentum=0.6)
    for block in range(5):
        before = simulation.consensus()
        simulation.epoch(2)
        assert torch.equal(simulation.consensus(), before) == (block in silent)
    blocks = [[2 * b, 2 * b + 1] for b in range(5) if b not in silent]
    expected = oracle(2, rates, blocks, 0.6, 1.0)
    torch.testing.assert_close(simulation.consensus(), expected, rtol=1e-12, atol=1e-14)


def test_a_rate_of_0_in_one_group_leaves_the_other_alone() -> None:
    half = blockwise([0.1, 0.0, 0.2], [1.0, 0.3, 0.5], 2)
    both = blockwise([0.1, 0.1, 0.2], [1.0, 0.3, 0.5], 2)
    models = []
    for rates in (half, both):
        simulation = pairs(2, rates, period=2)
        simulation.epoch(6)
        models.append(simulation.consensus())
    assert torch.equal(models[0][2:], models[1][2:])
    assert models[0].isfinite().all()
    expected = oracle(2, both, [[0, 1], [4, 5]], 0.5, 1.0)[:2]
    torch.testing.assert_close(models[0][:2], expected, rtol=1e-12, atol=1e-14)


def test_a_schedule_that_ends_at_0_does_not_touch_the_last_block() -> None:
    """Where the rate becomes 0 only after the last step, no step has had it."""
    simulation = pairs(2, constant, period=2)
    for virtual in simulation.learners:
        virtual.optimizer.register_step_post_hook(_at_step(virtual, 4, 0.0))
    simulation.epoch(4)
    expected = oracle(2, constant, [[0, 1], [2, 3]], 0.5, 1.0)
    torch.testing.assert_close(simulation.consensus(), expected, rtol=1e-12, atol=1e-14)


def _at_step(virtual: VirtualLearner, step: int, lr: float) -> Callable[..., None]:
    def hook(optimizer: Optimizer, *_: Any) -> None:
        if virtual.learner.steps + 1 == step:
            for group in optimizer.param_groups:
                group["lr"] = lr

    return hook


def test_learners_whose_rates_differ_get_the_same_bits() -> None:
    """With uneven data, schedules that count own steps come apart."""
    simulation = pairs(3, lambda step, _: 0.1 / (1 + step), period=2)
    simulation.epoch([7, 2, 4])
    simulation.epoch([3, 1, 5])
    first, *others = [virtual.learner.params for virtual in simulation.learners]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("options", "steps", "equal"),
    [
        ({"moments": "reset"}, 0.0, True),
        ({}, 4.0, False),
        ({"moments": "average"}, 4.0, True),
    ],
)
def test_moments_at_the_end_of_a_block(
    options: dict[str, str], steps: float, equal: bool
) -> None:
    """They are each learner's own unless told otherwise."""
    simulation = pairs(2, constant, Adam, period=4, **options)
    simulation.epoch(4)
    states = [v.optimizer.state[v.learner.parameters[0]] for v in simulation.learners]
    assert [state["step"].item() for state in states] == [steps, steps]
    assert torch.equal(states[0]["exp_avg"], states[1]["exp_avg"]) == equal
    assert (states[0]["exp_avg"].abs().sum() == 0) == (steps == 0)


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
    simulation = started(learners, Compute(spread=1))
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


def test_blocks_of_the_warmup_are_plain_averages() -> None:
    steps = [[-1.0] * 6, [-3.0] * 6]
    learners = points(
        "diloco", 2, lambda m, r: along(m, steps[r]), SGD, period=2, warmup=4
    )
    simulation = started(learners)
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
