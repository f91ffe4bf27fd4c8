"""Which algorithms correct Adam's second moment, and for how many batches."""

import logging
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from espnet_distopt import Session
from espnet_distopt.algorithms import ALGORITHMS, build
from espnet_distopt.core.learner import Learner
from espnet_distopt.optimizers.consistent import NOISE
from espnet_distopt.simulation import Simulation, VirtualLearner
from tests.processes import launch
from tests.replicas import Point

AVERAGING: dict[str, tuple[dict[str, Any], int]] = {
    "adpsgd": ({}, 8),
    "hadpsgd": ({"per_node": 2}, 4),
    "dpsgd": ({}, 8),
    "d1d_model": ({}, 8),
    "local_sgd": ({"period": 4}, 8),
}
"""Options of the algorithms that average models, and N of eight learners."""


def learner(make: Any = Adam, size: int = 8) -> Learner:
    model = Point([1.0, 2.0])
    return Learner(model, make(model.parameters(), lr=0.1), 0, size)


@pytest.mark.parametrize("name", AVERAGING)
def test_batches_are_those_of_learners_or_nodes(name: str) -> None:
    options, batches = AVERAGING[name]
    assert build(name, options, learner()).averaged_batches == batches
    local = {**options, "second_moment": "local"}
    assert build(name, local, learner()).averaged_batches == 1


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(AVERAGING)))
def test_others_leave_the_second_moment_alone(name: str) -> None:
    """Their steps are those of the small batches, or of the whole batch already."""
    assert build(name, {}, learner()).averaged_batches == 1


def distance_gone(name: str, moment: str | None) -> float:
    """Return how far the mean goes where learners see noise about the same slope.

    The moments look back on 200 steps, and the training has 400.
    """
    size, steps = 8, 400
    options = dict(AVERAGING[name][0]) if name in AVERAGING else {}
    if moment is not None:
        options["second_moment"] = moment

    def make(rank: int) -> VirtualLearner:
        model = Point([0.0] * 100)

        def gradient(step: int) -> float:
            seed = torch.Generator().manual_seed(1000 * step + rank)
            noise = torch.randn(100, generator=seed, dtype=torch.float64)
            (model.x * (0.2 + noise)).sum().backward()
            return 0.0

        optimizer = AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.995))
        return VirtualLearner(model, optimizer, gradient, name, rank, size, **options)

    simulation = Simulation([make(rank) for rank in range(size)])
    simulation.start()
    simulation.epoch(steps)
    return -float(simulation.consensus().mean())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["local_sgd", "dpsgd", "adpsgd"])
def test_the_mean_goes_as_far_as_with_all_reduce(name: str) -> None:
    whole = distance_gone("allreduce", None)
    assert distance_gone(name, None) == pytest.approx(whole, rel=0.1)
    assert distance_gone(name, "local") < 0.6 * whole


def test_an_optimizer_that_is_not_known_is_trained_and_named_once() -> None:
    """One learner names it; SGD divides by nothing, and is not worth a line."""
    assert launch(2, warnings_of, SGD) == [(False, [])] * 2
    assert launch(2, warnings_of, Adam) == [(True, [])] * 2
    (_, (line,)), quiet = launch(2, warnings_of, RMSprop)
    assert line.startswith("second_moment: consistent is not known for this RMSprop")
    assert "\n" not in line
    assert quiet == (False, [])


def warnings_of(make: type[Optimizer]) -> tuple[bool, list[str]]:
    """Make two steps; return whether the noise was followed, and what was logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("espnet_distopt").addHandler(handler)
    model = torch.nn.Linear(3, 1)
    optimizer = make(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    with Session(model, optimizer, "local_sgd") as session:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            session.step()
    hooks = (
        *optimizer._optimizer_step_pre_hooks,
        *optimizer._optimizer_step_post_hooks,
    )
    assert not hooks, "the session has left hooks behind"
    return NOISE in optimizer.state[model.weight], lines


@pytest.mark.parametrize("delay", [0, 1])
def test_moments_that_are_reset_take_the_noise_with_them(delay: int) -> None:
    """Or the noise of many updates would be held against a moment of one."""

    def make(rank: int) -> VirtualLearner:
        model = Point([0.0] * 8)

        def gradient(step: int) -> float:
            model.x.grad = torch.full((8,), 1.0 + step % 2, dtype=torch.float64)
            return 0.0

        optimizer = Adam(model.parameters(), lr=0.1)
        options = {"period": 3, "delay": delay, "moments": "reset"}
        return VirtualLearner(
            model, optimizer, gradient, "local_sgd", rank, 2, **options
        )

    learners = [make(rank) for rank in range(2)]
    simulation = Simulation(learners)
    simulation.start()
    largest = 0.0
    for _ in range(4):
        simulation.epoch(3 + delay)
        for each in learners:
            state = each.optimizer.state_dict()["state"][0]
            noise = state.get(NOISE, torch.zeros(1)).max().item()
            largest = max(largest, noise / (1 - 0.999 ** max(1, float(state["step"]))))
    assert largest < 1.0, "more than the variance of 1 and 2"
