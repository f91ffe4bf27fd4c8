"""These tests compare the simulation with oracles.

Parameters are compared bit for bit, and times with closed forms.
"""

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
from tests.replicas import Point
from tests.virtual import STEPS_ALONE, along, points, started, towards_rank, x


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - STEPS_ALONE))
def test_one_learner_is_the_plain_optimizer_bit_for_bit(name: str) -> None:
    steps = [0.3, -0.7, 0.2, 0.9, -0.1]
    learners = points(name, 1, lambda model, _: along(model, steps), Adam)
    simulation = started(learners)
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


def test_start_copies_learner_0() -> None:
    learners = points("bmuf", 3, towards_rank)
    learners[0].learner.params.fill_(7.0)
    Simulation(learners).start()
    assert [x(v) for v in learners] == [[7.0, 7.0]] * 3


# Time


def test_time_of_a_step_with_all_reduce() -> None:
    """A message has 5 float64: the gradient (2) and what learners must agree on."""
    link = Link(latency=0.5, bandwidth=8)
    learners = points("allreduce", 4, towards_rank)
    simulation = started(learners, Compute(seconds=1), Network(between=link))
    begun = simulation.seconds
    assert begun == 3 * 0.5 + 2
    simulation.epoch(1)
    assert simulation.record[-1].seconds == begun + 1 + 6 * (0.5 + 1.25)


@pytest.mark.thorough
@pytest.mark.parametrize(("topology", "size"), [("ring", 1024), ("random", 256)])
def test_a_thousand_learners_on_a_quadratic(topology: str, size: int) -> None:
    learners = points("adpsgd", size, towards_rank, topology=topology)
    simulation = started(learners, Compute(spread=0.3))
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
    simulation = started(learners)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(norms[1].state_dict()["running_var"], torch.full((2,), 2.0))
    simulation.epoch(3)
    means = [norm.state_dict()["running_mean"].clone() for norm in norms]
    assert not torch.equal(means[0], means[1])
    simulation.consensus()
    for norm in norms:
        mean = norm.state_dict()["running_mean"]
        assert torch.equal(mean, (means[0] + means[1]) / 2)
