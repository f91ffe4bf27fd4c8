"""These tests compare the simulation with oracles.

Parameters are compared bit for bit, and times with closed forms.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)
from tests.replicas import Point, Replica, run
from tests.virtual import STEPS_ALONE, along, points, towards_rank, x


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - STEPS_ALONE))
def test_one_learner_is_the_plain_optimizer_bit_for_bit(name: str) -> None:
    steps = [0.3, -0.7, 0.2, 0.9, -0.1]
    learners = points(name, 1, lambda model, _: along(model, steps), Adam)
    simulation = Simulation(learners)
    simulation.start()
    simulation.epoch(3)
    simulation.epoch(2)
    plain = Point([0.25, -0.5])
    optimizer = Adam(plain.parameters(), lr=0.1)
    for step in range(len(steps)):
        optimizer.zero_grad()
        along(plain, steps)(step)
        optimizer.step()
    assert torch.equal(learners[0].learner.params, plain.x)
    assert torch.equal(simulation.consensus(), plain.x)
    assert simulation.seconds == pytest.approx(5 * 0.3, abs=1e-12)
    assert learners[0].bytes_sent == 0


@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam"])
@pytest.mark.parametrize("lengths", [[[7] * 4, [6] * 4], [[7, 0, 3, 9], [1, 8, 2, 2]]])
def test_blocks_are_those_of_lockstep(name: str, lengths: list[list[int]]) -> None:
    source = random.Random(0)
    steps = [[source.uniform(-1, 1) for _ in range(20)] for _ in range(4)]
    options: dict[str, Any] = {"period": 3, "momentum": 0.5, "warmup": 0}
    make = partial(Adam, lr=0.1)
    replicas = [
        Replica.of(name, Point([0.25, -0.5]), make, rank, 4, **options)
        for rank in range(4)
    ]
    run(*(r.algorithm.start(r.learner) for r in replicas))
    learners = points(
        name, 4, lambda model, rank: along(model, steps[rank]), Adam, **options
    )
    simulation = Simulation(learners, Compute(spread=1))
    simulation.start()
    for counts in lengths:
        begun = [r.learner.steps for r in replicas]
        parts = [
            all_[a : a + n] for all_, a, n in zip(steps, begun, counts, strict=True)
        ]
        run(*(r.epoch(part) for r, part in zip(replicas, parts, strict=True)))
        simulation.epoch(counts)
    for virtual, replica in zip(learners, replicas, strict=True):
        assert torch.equal(virtual.learner.params, replica.learner.params)
    (expected, *_) = run(*(r.algorithm.consensus(r.learner) for r in replicas))
    assert torch.equal(simulation.consensus(), expected)


def test_allreduce_is_one_learner_with_the_mean_gradient() -> None:
    source = random.Random(0)
    steps = [[source.uniform(-1, 1) for _ in range(8)] for _ in range(4)]
    learners = points(
        "allreduce", 4, lambda model, rank: along(model, steps[rank]), Adam
    )
    simulation = Simulation(learners, Compute(spread=1))
    simulation.start()
    simulation.epoch(5)
    simulation.epoch(3)
    plain = Point([0.25, -0.5])
    optimizer = Adam(plain.parameters(), lr=0.1)
    for column in zip(*steps, strict=True):
        optimizer.zero_grad()
        along(plain, [sum(column) / 4])(0)
        optimizer.step()
    for virtual in learners:
        assert torch.equal(virtual.learner.params, learners[0].learner.params)
        assert x(virtual) == pytest.approx(plain.x.tolist(), rel=1e-12)


def test_start_copies_learner_0() -> None:
    learners = points("bmuf", 3, towards_rank)
    learners[0].learner.params.fill_(7.0)
    Simulation(learners).start()
    assert [x(v) for v in learners] == [[7.0, 7.0]] * 3


# Time


def throughput(name: str, slowdown: float, steps: Sequence[int]) -> float:
    """Return the steps per virtual second, relative to equally fast learners."""
    size = len(steps)
    compute = Compute(seconds=1, slowdown={size - 1: slowdown})
    simulation = Simulation(points(name, size, towards_rank), compute)
    simulation.start()
    simulation.epoch(steps)
    return len(simulation.record) / simulation.record[-1].seconds / size


def test_a_straggler_slows_adpsgd_by_its_own_steps_only() -> None:
    """One learner of 16 is 10 times slower, so the bound is (n - 1 + 1/s) / n."""
    relative = throughput("adpsgd", 10, [100] * 15 + [10])
    assert relative == pytest.approx((16 - 1 + 1 / 10) / 16, rel=0.01)


def test_a_straggler_slows_allreduce_to_its_own_pace() -> None:
    assert throughput("allreduce", 10, [20] * 16) == pytest.approx(0.1, rel=0.01)


def test_time_of_a_step_with_all_reduce() -> None:
    """A message has 5 float64: the gradient (2) and what learners must agree on."""
    link = Link(latency=0.5, bandwidth=8)
    learners = points("allreduce", 4, towards_rank)
    simulation = Simulation(learners, Compute(seconds=1), Network(between=link))
    simulation.start()
    started = simulation.seconds
    assert started == 3 * 0.5 + 2
    simulation.epoch(1)
    assert simulation.record[-1].seconds == started + 1 + 6 * (0.5 + 1.25)


@pytest.mark.thorough
@pytest.mark.parametrize(("topology", "size"), [("ring", 1024), ("random", 256)])
def test_a_thousand_learners_on_a_quadratic(topology: str, size: int) -> None:
    learners = points("adpsgd", size, towards_rank, topology=topology)
    simulation = Simulation(learners, Compute(spread=0.3))
    simulation.start()
    simulation.epoch(5)
    assert len(simulation.record) == size * 5
    left = (1 - 0.1) ** 5  # of the way, in the mean: as one learner's
    middle = (size - 1) / 2
    expected = [middle + (start - middle) * left for start in (0.25, -0.5)]
    assert simulation.consensus().tolist() == pytest.approx(expected, rel=0.01)


def test_what_is_not_trained_begins_equal_and_statistics_are_averaged() -> None:
    """Buffers, frozen parameters and BatchNorm's statistics follow a `Session`."""

    norms, weights = list[nn.BatchNorm1d](), list[torch.Tensor]()

    def replica(rank: int) -> VirtualLearner:
        torch.manual_seed(rank)
        linear, norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        linear.weight.requires_grad_(False)
        norms.append(norm)
        weights.append(linear.weight)
        model = nn.Sequential(linear, norm)

        def gradient(_: int) -> float:
            loss = model(torch.randn(8, 3) + rank).square().sum()
            loss.backward()
            return float(loss.detach())

        optimizer = SGD([linear.bias, *norm.parameters()], lr=0.1)
        return VirtualLearner(model, optimizer, gradient, "bmuf", rank, 2)

    learners = [replica(rank) for rank in range(2)]
    assert norms[0].running_var is not None
    norms[0].running_var.fill_(2.0)
    simulation = Simulation(learners)
    simulation.start()
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(norms[1].state_dict()["running_var"], torch.full((2,), 2.0))
    simulation.epoch(3)
    means = [norm.state_dict()["running_mean"].clone() for norm in norms]
    assert not torch.equal(means[0], means[1])
    simulation.consensus()
    for norm in norms:
        mean = norm.state_dict()["running_mean"]
        assert torch.equal(mean, (means[0] + means[1]) / 2)
