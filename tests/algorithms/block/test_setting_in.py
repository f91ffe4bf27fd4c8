"""Block momentum that sets in by itself, where no `warmup` is given.

The vectors are BM9 and BA7 of docs/algorithms/block.md.
"""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from espnet_distopt.algorithms.block import filter as block_filter
from espnet_distopt.algorithms.block.moments import extrapolation_gain
from espnet_distopt.simulation import Compute, Simulation
from tests.virtual import along_each, bowls, drawn, points, started

FAST = 10.0
"""A horizon in which momentum sets in within a short test."""


def slope(rank: int, step: int) -> Tensor:
    """A direction that turns round now and then, and noise."""
    return math.cos(step / 5) + 0.5 * drawn(1000 * rank + step, 2)


def begun(name: str, size: int, make: Any = SGD, **options: Any) -> Simulation:
    learners = points(name, size, along_each(slope), make, **options)
    return started(learners, Compute(spread=0.5))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bmuf", {"period": 3}),
        ("bmuf", {"period": 3, "nesterov": False, "momentum": 0.8, "block_lr": 1.5}),
        ("diloco", {"period": 3}),
    ],
)
def test_bm9_is_its_equations(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out in float64; some blocks agree with Delta, and some do not."""
    monkeypatch.setattr(block_filter, "HORIZON", FAST)
    simulation = begun(name, 3, **options)
    begin = simulation.learners[0].learner.params.clone()
    eta, zeta = {"bmuf": (2 / 3, 1.0), "diloco": (0.9, 0.7)}[name]
    eta, zeta = options.get("momentum", eta), options.get("block_lr", zeta)
    theta = init = begin
    delta, agreeing, seen = torch.zeros_like(begin), 0, set()
    for block in range(12):
        simulation.epoch(3)
        steps = range(3 * block, 3 * block + 3)
        slopes = [slope(r, s) for r in range(3) for s in steps]
        update = -0.1 * torch.stack(slopes).sum(0) / 3
        agreeing = agreeing + 3 if update @ delta > 0 else 0
        seen.add(agreeing)
        part = 1 - math.exp(-agreeing / FAST)
        if agreeing == 0:  # The block begins a new filtered update.
            theta, delta = init + update, update
            init = theta
        else:
            delta = part * eta * delta + (1 + part * (zeta - 1)) * update
            theta = theta + delta
            init = (
                theta + part * eta * delta if options.get("nesterov", True) else theta
            )
        expected = init if name == "diloco" else theta
        torch.testing.assert_close(
            simulation.consensus(), expected, rtol=1e-12, atol=1e-13
        )
    assert 0 in seen and max(seen) > FAST


def single(number: float) -> float:
    """A step count as Adam holds it."""
    return float(torch.tensor(number, dtype=torch.float32))


def test_ba7_first_moments_are_carried_as_far_as_momentum_has_set_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written out in float64: Adam on three learners, and the ends of its blocks."""
    monkeypatch.setattr(block_filter, "HORIZON", FAST)
    make, b1, b2 = partial(Adam, lr=0.1, betas=(0.9, 0.99)), 0.9, 0.99
    options = {"period": 3, "second_moment": "local"}
    simulation = begun("bmuf_adam", 3, make, **options)
    theta = init = simulation.learners[0].learner.params.clone()
    delta = m = v = torch.zeros_like(init)
    agreeing, rho, count, seen = 0, 0.0, 0.0, set()
    for block in range(12):
        simulation.epoch(3)
        ends = []
        for rank in range(3):
            x, own_m, own_v, t = init, m, v, count
            for step in range(3 * block, 3 * block + 3):
                g = slope(rank, step)
                own_m, own_v = b1 * own_m + (1 - b1) * g, b2 * own_v + (1 - b2) * g * g
                t = single(t + 1)
                root = (own_v / (1 - b2**t)).sqrt() + 1e-8
                x = x - 0.1 * own_m / (1 - b1**t) / root
            ends.append(torch.stack([x, own_m, own_v]))
        mean, mean_m, mean_v = torch.stack(ends).mean(0)
        update = mean - init
        agreeing = agreeing + 3 if update @ delta > 0 else 0
        seen.add(agreeing)
        part = 1 - math.exp(-agreeing / FAST)
        eta = part * 2 / 3
        rho, delta = eta * rho + 3, eta * delta + update
        theta = theta + delta if agreeing else mean
        tau = t - count  # It is 3, as float32 counts.
        init, k = theta + eta * delta, eta * rho * tau / 3
        m = mean_m + part * extrapolation_gain(b1, tau, k) * (mean_m - m)
        ahead = mean_v + extrapolation_gain(b2, tau, k) * (mean_v - v)
        v = torch.maximum(ahead, b2 ** (tau + k) * v) if agreeing else mean_v
        count = single(t + k)
        learner = simulation.learners[0].learner
        state = learner.optimizer.state[learner.parameters[0]]
        found = learner.params, state["exp_avg"], state["exp_avg_sq"]
        for each, expected in zip(found, (init, m, v), strict=True):
            torch.testing.assert_close(each, expected, rtol=1e-9, atol=1e-12)
        assert float(state["step"]) == pytest.approx(count, rel=1e-7)
    assert 0 in seen and max(seen) > FAST


@pytest.mark.parametrize("size", [2, 4, 16])
def test_blocks_that_overshoot_are_not_amplified(size: int) -> None:
    """Each block leads to the other side; with momentum that is farther each time."""
    ends = {}
    for warmup in (None, 0):
        stiff = bowls(*[(18.5, 0.0)] * size)
        simulation = started(points("bmuf", size, stiff, period=3, warmup=warmup))
        before = simulation.consensus().norm()
        simulation.epoch(120)
        ends[warmup] = simulation.consensus().norm() / before
    assert ends[None] < 1e-6
    assert ends[0] > 1e2


def test_a_number_of_steps_is_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_filter, "HORIZON", FAST)
    found = []
    for warmup in (None, 0, 9):
        simulation = begun("bmuf", 2, period=3, warmup=warmup)
        simulation.epoch(24)
        found.append(simulation.consensus())
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))
