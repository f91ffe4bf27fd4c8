"""Block momentum that sets in by itself, where no `warmup` is given.

The vector is BM9 of docs/algorithms/block.md.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from espnet_distopt.algorithms.block import filter as block_filter
from espnet_distopt.simulation import Compute, Simulation
from tests import virtual
from tests.replicas import Point

SIZE = 2
FAST = 10.0
"""A horizon in which momentum sets in within a short test."""

ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("bmuf", {"period": 3}),
    ("bmuf", {"period": 3, "nesterov": False, "momentum": 0.8, "block_lr": 1.5}),
    ("bmuf_adam", {"period": 3}),
    ("diloco", {"period": 3}),
]


def draw(rank: int, step: int) -> Tensor:
    data = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(SIZE, generator=data, dtype=torch.float64)


def noisy(model: Point, rank: int) -> Callable[[int], float]:
    """The gradient is a direction that turns round now and then, and noise."""

    def gradient(step: int) -> float:
        slope = math.cos(step / 5) + 0.5 * draw(rank, step)
        (model.x * slope).sum().backward()  # type: ignore[no-untyped-call]
        return 0.0

    return gradient


def started(name: str, size: int, make: Any, **options: Any) -> Simulation:
    learners = virtual.points(name, size, noisy, make, **options)
    simulation = Simulation(learners, Compute(spread=0.5))
    simulation.start()
    return simulation


def filters(simulation: Simulation) -> list[Any]:
    algorithm: Any = simulation.learners[0].algorithm
    return [fragment.filter for fragment in algorithm.fragments]


@pytest.mark.parametrize(
    ("name", "options"), [each for each in ALGORITHMS if each[0] != "bmuf_adam"]
)
def test_bm9_is_its_equations(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out in float64; some blocks agree with Delta, and some do not."""
    monkeypatch.setattr(block_filter, "HORIZON", FAST)
    simulation = started(name, 3, SGD, **options)
    begin = simulation.learners[0].learner.params.clone()
    eta, zeta = {"bmuf": (2 / 3, 1.0), "diloco": (0.9, 0.7)}[name]
    eta, zeta = options.get("momentum", eta), options.get("block_lr", zeta)
    theta = init = begin
    delta, agreeing, seen = torch.zeros_like(begin), 0, set()
    for block in range(12):
        simulation.epoch(3)
        steps = range(3 * block, 3 * block + 3)
        slopes = [math.cos(s / 5) + 0.5 * draw(r, s) for r in range(3) for s in steps]
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


@pytest.mark.parametrize("size", [2, 4, 16])
def test_blocks_that_overshoot_are_not_amplified(size: int) -> None:
    """Each block leads to the other side; with momentum that is farther each time."""
    ends = {}
    for warmup in (None, 0):

        def stiff(model: Point, rank: int) -> Callable[[int], float]:
            def gradient(step: int) -> float:
                (9.25 * model.x.square()).sum().backward()  # type: ignore[no-untyped-call]
                return 0.0

            return gradient

        options = {"period": 3, "warmup": warmup}
        simulation = Simulation(virtual.points("bmuf", size, stiff, **options))
        simulation.start()
        before = simulation.consensus().norm()
        simulation.epoch(120)
        ends[warmup] = simulation.consensus().norm() / before
    assert ends[None] < 1e-6
    assert ends[0] > 1e2


def test_a_number_of_steps_is_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_filter, "HORIZON", FAST)
    found = []
    for warmup in (None, 0, 9):
        simulation = started("bmuf", 2, SGD, period=3, warmup=warmup)
        simulation.epoch(24)
        found.append(simulation.consensus())
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))
