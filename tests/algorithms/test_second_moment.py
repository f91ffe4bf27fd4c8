"""Which algorithms correct Adam's second moment, and for how many batches."""

from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from espnet_distopt import Session
from espnet_distopt.algorithms import build
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
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
    assert build(name, options, learner()).averaged_batches == 1
    consistent = {**options, "second_moment": "consistent"}
    assert build(name, consistent, learner()).averaged_batches == batches


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
    assert distance_gone(name, "consistent") == pytest.approx(whole, rel=0.1)
    assert distance_gone(name, "local") < 0.6 * whole


def test_another_second_moment_is_refused_and_sgd_has_none() -> None:
    def attach(make: Any) -> list[Any]:
        return launch(2, open_session, make)

    assert attach(SGD) == [False] * 2
    assert attach(Adam) == [True] * 2
    for text in attach(NAdam):
        assert "not for this NAdam; set second_moment: local" in text


def open_session(make: type[Optimizer]) -> object:
    """Make two steps; return whether the noise was followed, or the error."""
    model = torch.nn.Linear(3, 1)
    optimizer = make(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    options = {"second_moment": "consistent"}
    try:
        with Session(model, optimizer, "local_sgd", **options) as session:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                session.step()
    except InputError as error:
        return str(error)
    hooks = (
        *optimizer._optimizer_step_pre_hooks,
        *optimizer._optimizer_step_post_hooks,
    )
    assert not hooks, "the session has left hooks behind"
    return NOISE in optimizer.state[model.weight]
