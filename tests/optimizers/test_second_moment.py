"""The corrected steps of each optimizer follow the equations, in float64."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam

from espnet_distopt.optimizers.consistent import (
    NEVER,
    NOISE,
    ConsistentSecondMoment,
    _scales,
    after_average,
)
from tests.optimizers.moment_oracle import Oracle, gradients

BETAS = {"betas": (0.8, 0.95)}
DECAY = {"weight_decay": 0.1}
RULES: dict[str, Any] = {"adam": Adam, "nadam": NAdam, "radam": RAdam}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "betas": BETAS,
    "l2": {**DECAY, "eps": 1e-3},
    "decoupled": {**DECAY, **BETAS},
    "maximize": {"maximize": True, **DECAY, "eps": 1e-3},
}


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    """Let NAdam keep the product of its momenta in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make(rule: str, variant: str) -> tuple[Any, Oracle]:
    """Return what makes the optimizer, and its oracle."""
    options = {"lr": 0.01, **VARIANTS[variant]}
    decoupled = variant == "decoupled"
    oracle = Oracle(rule=rule, decoupled=decoupled, **options)
    if decoupled and rule == "adam":
        return partial(AdamW, **options), oracle
    if decoupled:
        options["decoupled_weight_decay"] = True
    return partial(RULES[rule], **options), oracle


def walk(optimizer: Optimizer, parameter: nn.Parameter, count: int = 30) -> None:
    for gradient in gradients(count):
        parameter.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("how", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", RULES)
def test_steps_follow_the_equations(rule: str, variant: str, how: str) -> None:
    if how == "fused" and rule != "adam":
        return  # PyTorch has no such NAdam and RAdam.
    maker, oracle = make(rule, variant)
    parameter = nn.Parameter(torch.ones(7))
    way = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
    optimizer = maker([parameter], **way)
    ConsistentSecondMoment(optimizer, 16)
    walk(optimizer, parameter)
    rule_ = oracle.run(torch.ones(7), list(gradients(30)))
    torch.testing.assert_close(parameter.data, rule_, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_the_oracle_is_the_stock_optimizer_for_one_batch(rule: str) -> None:
    """The oracle itself is right: with N = 1 it is PyTorch's optimizer."""
    for variant in VARIANTS:
        maker, oracle = make(rule, variant)
        parameter = nn.Parameter(torch.ones(7))
        walk(maker([parameter]), parameter)
        one = Oracle(**{**vars(oracle), "batches": 1})
        own = one.run(torch.ones(7), list(gradients(30)))
        torch.testing.assert_close(parameter.data, own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_groups_and_parameters_without_a_gradient(rule: str) -> None:
    """Each parameter counts its own updates, and each group has its own options."""
    options = [{"lr": 0.01, **BETAS}, {"lr": 0.02, **DECAY}]
    pair = [nn.Parameter(torch.ones(7)) for _ in range(2)]
    groups = [{"params": [p], **o} for p, o in zip(pair, options, strict=True)]
    never = nn.Parameter(torch.ones(2))
    optimizer = RULES[rule]([*groups, {"params": [never]}])
    ConsistentSecondMoment(optimizer, 16)
    given = [list(gradients(30, seed=seed)) for seed in (1, 2)]
    given[1] = [g if k % 3 else None for k, g in enumerate(given[1])]  # type: ignore[misc]
    for both in zip(*given, strict=True):
        for parameter, gradient in zip(pair, both, strict=True):
            parameter.grad = gradient
        optimizer.step()
    for parameter, own, seen in zip(pair, options, given, strict=True):
        expected = Oracle(rule=rule, **own).run(torch.ones(7), seen)  # type: ignore[arg-type]
        torch.testing.assert_close(parameter.data, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(never.data, torch.ones(2)) and not optimizer.state[never]


@pytest.mark.parametrize("batches", [4, 64])
def test_noise_divides_as_that_of_the_whole_batch(batches: int) -> None:
    """One learner's moments tell what Adam would see of N times the batch."""
    generator = torch.Generator().manual_seed(0)
    size, steps, mean = 4000, 3000, 0.05
    own = nn.Parameter(torch.zeros(size, dtype=torch.float32))
    optimizer = Adam([own], lr=0.0)
    ConsistentSecondMoment(optimizer, batches)
    for _ in range(steps):
        noise = torch.randn(size, generator=generator, dtype=torch.float32)
        own.grad = mean + noise
        optimizer.step()
    state = optimizer.state[own]
    vh = state["exp_avg_sq"] / (1 - 0.999**steps)
    sh = state[NOISE] / (1 - 0.999 ** (steps - 1))
    whole = mean**2 + 1 / batches
    assert (vh - (1 - 1 / batches) * sh).mean().item() == pytest.approx(whole, rel=0.05)
    assert vh.mean().item() == pytest.approx(mean**2 + 1, rel=0.02)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_without_noise_are_divided_as_before(rule: str) -> None:
    pair = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [RULES[rule]([p], lr=0.01) for p in pair]
    ConsistentSecondMoment(optimizers[1], 16)
    for _ in range(20):
        for parameter, optimizer in zip(pair, optimizers, strict=True):
            parameter.grad = torch.tensor([1.0, -2.0, 0.5])
            optimizer.step()
    torch.testing.assert_close(pair[0].data, pair[1].data, rtol=1e-12, atol=1e-12)


def test_many_batches_in_float32_leave_the_step_finite() -> None:
    """What is lent may be negative; what the step divides by is not."""
    parameter = nn.Parameter(torch.zeros(20_000, dtype=torch.float32))
    optimizer = Adam([parameter], lr=1.0, foreach=True)
    ConsistentSecondMoment(optimizer, 1024)
    generator = torch.Generator().manual_seed(0)
    for step in range(40):
        noise = torch.randn(20_000, generator=generator, dtype=torch.float32)
        parameter.grad = noise * 10.0 ** (step % 7 - 3)
        before = parameter.detach().clone()
        optimizer.step()
        moved = (parameter.detach() - before).abs().max().item()
        # |mh| / sqrt(vh) of Adam is at most about sqrt(sum of its weights squared).
        assert 0 < moved < 1024**0.5 * 8


def test_the_noise_of_averaged_first_moments() -> None:
    """Each worker's m, as a sum over all noises of all workers, has a known variance.

    Averages come at updates of unequal distance; the one at 11 comes two updates late.
    """
    b1, workers, updates = 0.8, 3, 20
    m = torch.zeros(workers, workers, updates)
    shared = NEVER
    for update in range(1, updates + 1):
        m *= b1
        for worker in range(workers):
            m[worker, worker, update - 1] += 1 - b1
        if update in (3, 4, 8, 19):
            m[:] = m.mean(0)
            shared = (update, after_average(update, b1, shared, workers))
        if update == 11:
            then = m.clone()
        if update == 13:
            m += b1**2 * (then.mean(0) - then)
            shared = (11, after_average(11, b1, shared, workers))
        variances = m.square().sum((1, 2))
        unbias, factor = _scales(update, (b1, 0.99), shared)
        expected = 1 + unbias**2 * variances
        torch.testing.assert_close(
            torch.full((3,), factor), expected, rtol=1e-13, atol=0
        )
