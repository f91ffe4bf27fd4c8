"""These tests cover the parts of a trial: problem, queue, and evaluation."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.simulation import (
    Compute,
    Fault,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)
from espnet_distopt.simulation.study.outcome import SimulatedMethod
from espnet_distopt.simulation.study.problem import Quadratic
from espnet_distopt.simulation.study.trial import Trial, evaluate, shares
from tests.virtual import place, points, started, towards_rank, x

# The quadratic


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([t.detach().clone() for t in tensors if t is not None])


def test_curvatures_of_the_quadratic() -> None:
    problem = Quadratic(dimension=3, condition=100, noise=0)
    model, gradient = problem.replica(0, 1)
    start = flat(model.parameters())
    loss = gradient(0)
    assert loss == pytest.approx(problem.held_out_loss(model), rel=1e-12)
    found = flat(p.grad for p in model.parameters())
    curvature = torch.tensor([1, 0.1, 0.01], dtype=torch.float64)
    optimum = start - found / curvature
    expected = (curvature * (start - optimum).square()).sum() / 2
    assert loss == pytest.approx(float(expected), rel=1e-12)
    nn.utils.vector_to_parameters(optimum, model.parameters())
    assert problem.held_out_loss(model) == pytest.approx(0, abs=1e-25)


def test_noise_of_the_quadratic_is_that_of_a_mean_over_samples() -> None:
    problem = Quadratic(dimension=20_000, condition=1, noise=3, batch_size=4)
    model, gradient = problem.replica(0, 1)
    torch.manual_seed(0)
    gradients = []
    for step in range(2):
        model.zero_grad()
        gradient(step)
        gradients.append(flat(p.grad for p in model.parameters()))
    difference = gradients[0] - gradients[1]
    assert float(difference.std()) == pytest.approx(2**0.5 * 3 / 2, rel=0.02)


def test_replicas_begin_equal_and_the_seed_decides_where() -> None:
    def start(seed: int, rank: int) -> torch.Tensor:
        model, _ = Quadratic(seed=seed).replica(rank, 2)
        return next(model.parameters()).detach()

    assert torch.equal(start(0, 0), start(0, 1))
    assert not torch.equal(start(0, 0), start(1, 0))


# The trial


def trial(**options: Any) -> Trial:
    return Trial(
        problem=Quadratic(dimension=2),
        optimizer=lambda model: SGD(model.parameters(), lr=0.1),
        batch_size=8,
        samples=32,
        epochs=1,
        **{"compute_learners": 4} | options,
    )


@pytest.mark.parametrize("name", ["adpsgd", "hadpsgd", "dpsgd"])
@pytest.mark.parametrize(("options", "expected"), [({}, 7), ({"seed": 3}, 3)])
def test_a_method_that_draws_at_random_gets_the_seed_of_the_trial(
    name: str, options: dict[str, int], expected: int
) -> None:
    method = SimulatedMethod(name=name, algorithm=name, options=options)
    learners = trial(seed=7).simulation(method, 4).learners
    configs: list[Any] = [getattr(each.algorithm, "config", None) for each in learners]
    assert [config.seed for config in configs] == [expected] * 4


@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize("fixed", [0, 0.8, 1])
def test_the_speedup_is_that_of_samples_a_second(learners: int, fixed: float) -> None:
    """One learner alone takes fixed + 4 (1 - fixed) seconds for 8 samples."""
    method = SimulatedMethod(name="a", algorithm="allreduce")
    free = Network(between=Link(latency=0, bandwidth=1e30))
    steps = {"compute": Compute(seconds=1), "fixed_seconds": fixed}
    outcome = trial(network=free, **steps).run(method, learners, lambda point: None)
    assert outcome.throughput is not None
    alone = 8 / (fixed + 4 * (1 - fixed))
    assert outcome.speedup == pytest.approx(outcome.throughput / alone, rel=1e-6)


# The queue


@pytest.mark.parametrize(
    ("slowdown", "group", "total", "expected"),
    [
        ({}, 1, 12, [3, 3, 3, 3]),
        ({}, 1, 2, [1, 1, 0, 0]),
        ({0: 3}, 1, 10, [1, 3, 3, 3]),
        ({3: 100}, 1, 31, [10, 10, 10, 1]),
        ({0: 3}, 2, 16, [2, 2, 6, 6]),
        ({0: 3}, 4, 12, [3, 3, 3, 3]),
    ],
)
def test_shares(
    slowdown: dict[int, float], group: int, total: int, expected: list[int]
) -> None:
    compute = Compute(seconds=1, slowdown=slowdown)
    assert shares(compute, [0] * 4, total, group) == expected


def test_who_has_died_takes_no_batch() -> None:
    compute = Compute(seconds=1, slowdown={1: 3})
    assert shares(compute, [9] * 4, 12, living=[0, 1, 3]) == [5, 2, 0, 5]
    assert shares(compute, [9] * 6, 12, 2, living=[0, 1, 4, 5]) == [2, 2, 0, 0, 4, 4]


def test_shares_follow_the_steps_that_come() -> None:
    """Steps of earlier epochs count, because a step's seconds depend on its number."""
    compute = Compute(spread=1)
    taken = shares(compute, [0, 0], 40)
    again = shares(compute, taken, 40)
    assert sum(taken) == sum(again) == 40
    seconds = [
        sum(compute.of(rank, taken[rank] + k) for k in range(again[rank]))
        for rank in range(2)
    ]
    last = max(compute.of(rank, taken[rank] + again[rank] - 1) for rank in range(2))
    assert abs(seconds[0] - seconds[1]) <= last


# The consensus model


def test_evaluate_looks_at_the_mean_and_changes_nothing() -> None:
    learners = points("adpsgd", 3, towards_rank)
    place(learners, [1, 2, 6])
    simulation = Simulation(learners)
    loss, distance = evaluate(simulation, lambda model: float(model.x.detach().sum()))
    assert loss == pytest.approx(2 * 3)
    assert distance == pytest.approx((2 + 1 + 3) / 3 / 3)
    assert [x(v)[0] for v in learners] == [1, 2, 6]


def test_evaluate_looks_at_the_living() -> None:
    learners = points("adpsgd", 4, towards_rank)
    crashes = [Fault(at=0.5, rank=0, kind="crash")]
    simulation = Simulation(learners, Compute(seconds=1), faults=crashes)
    place(learners, [1000, 1, 2, 6])
    simulation.epoch([1, 0, 0, 0])
    place(learners, [1000, 1, 2, 6])
    loss, distance = evaluate(simulation, lambda model: float(model.x.detach().sum()))
    assert loss == pytest.approx(2 * 3)
    assert distance == pytest.approx((2 + 1 + 3) / 3 / 3)
    assert [x(v)[0] for v in learners] == [1000, 1, 2, 6]


def test_evaluate_gives_the_parameters_back_when_the_loss_fails() -> None:
    learners = points("adpsgd", 2, towards_rank)
    place(learners, [1, 3])

    def fail(_: torch.nn.Module) -> float:
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        evaluate(Simulation(learners), fail)
    assert [x(v)[0] for v in learners] == [1, 3]


def test_a_learner_that_goes_on_from_the_consensus_does() -> None:
    learners = points("adpsgd", 2, towards_rank, from_consensus=True)
    place(learners, [1, 3])
    _, distance = evaluate(Simulation(learners), lambda _: 0.0)
    assert distance == pytest.approx(0.5)
    assert [x(v)[0] for v in learners] == [2, 2]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluating_does_not_disturb(name: str) -> None:
    def trained(look: bool) -> list[list[float]]:
        options = {"per_node": 2} if name == "hadpsgd" else {}
        problem = Quadratic(dimension=3)
        learners = []
        for rank in range(4):
            model, gradient = problem.replica(rank, 4)
            optimizer = SGD(model.parameters(), lr=0.1)
            learner = VirtualLearner(
                model, optimizer, gradient, name, rank, 4, **options
            )
            learners.append(learner)
        simulation = started(learners)
        for _ in range(2):
            simulation.epoch(3)
            if look:
                evaluate(simulation, problem.held_out_loss)
        return [x(v) for v in learners]

    assert trained(look=True) == trained(look=False)
