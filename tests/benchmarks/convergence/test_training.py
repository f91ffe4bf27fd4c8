"""All-reduce is one learner with all samples; the key of a training names it all."""

from dataclasses import replace

import arithmetic
import pytest
import torch
from convergence.stream_problems import TASKS, StreamProblem
from convergence.training import Training, as_one_learner, simulate

from tests.benchmarks.convergence.speech import sets

CELL = Training(
    algorithm="allreduce",
    learners=4,
    batch=2,
    samples=80,
    lr=0.003,
    seed=3,
    optim="adam",
    problem="digits",
    clip=0.5,
)


def figures(cell: Training) -> dict[str, float | None]:
    problem = StreamProblem(TASKS[cell.problem], sets(), cell.seed, held_out=40)
    return simulate(cell, problem)


@pytest.mark.parametrize("problem", TASKS)
@pytest.mark.parametrize(("optim", "lr"), [("adam", 0.003), ("sgd", 0.1)])
def test_one_learner_with_all_samples_makes_the_steps_of_all_reduce(
    problem: str, optim: str, lr: float
) -> None:
    cell = replace(CELL, problem=problem, optim=optim, lr=lr)
    merged = as_one_learner(cell)
    assert (merged.learners, merged.batch, merged.steps) == (1, 8, cell.steps)
    many, one = figures(cell), figures(merged)
    assert many["held_out"] == pytest.approx(one["held_out"], rel=1e-4)
    assert many["trained"] == pytest.approx(one["trained"], rel=1e-4)
    untrained = figures(replace(merged, lr=1e-9))
    assert abs(untrained["held_out"] - one["held_out"]) > 0.01  # type: ignore[operator]


def test_only_all_reduce_is_one_learner() -> None:
    cell = replace(CELL, algorithm="adpsgd")
    assert as_one_learner(cell) is cell


def test_a_training_that_diverges_has_no_figures() -> None:
    found = figures(replace(CELL, optim="sgd", lr=1e38, clip=1e38))
    assert found == {"held_out": None, "trained": None, "distance": None}


@pytest.mark.parametrize("optim", ["adam", "lamb", "sgd"])
def test_every_optimizer_learns(optim: str) -> None:
    cell = replace(CELL, learners=1, samples=600, lr=0.02)
    found = figures(replace(cell, optim=optim, clip=5.0))
    assert found["held_out"] is not None
    assert found["held_out"] < 1.5  # A guess has ln 10 = 2.3.


def test_options_of_a_training_change_it() -> None:
    losses = {
        figures(replace(CELL, **changed))["held_out"]  # type: ignore[arg-type]
        for changed in ({}, {"beta1": 0.5}, {"clip": 0.01})
    }
    assert len(losses) == 3


def test_a_key_has_what_is_not_the_default() -> None:
    key = CELL.key()
    assert key["learners"] == 4
    assert "beta1" not in key
    assert replace(CELL, beta1=0.5).key() == {**key, "beta1": 0.5}


def test_another_arithmetic_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    consistent = (("second_moment", "consistent"),)
    cell = replace(CELL, algorithm="adpsgd", options=consistent)
    for name in ("second_moment consistent", "adpsgd"):
        monkeypatch.setattr(arithmetic, "VERSIONS", {name: 1})
        before = cell.key()
        assert "arithmetic" not in before
        monkeypatch.setattr(arithmetic, "VERSIONS", {name: 2})
        assert cell.key() == {**before, "arithmetic": {name: 2}}
        assert "arithmetic" not in CELL.key()


@pytest.mark.parametrize(
    "name", ["second_moment consistent", "local_sgd moments local"]
)
def test_an_option_that_is_not_given_counts_with_its_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "VERSIONS", {name: 2})
    cell = replace(CELL, algorithm="local_sgd", options=(("period", 4),))
    assert cell.key()["arithmetic"] == {name: 2}
    others = (("second_moment", "local"), ("moments", "average"))
    assert "arithmetic" not in replace(cell, options=others).key()
    assert arithmetic.versions("none", ()) == {}


def test_the_streams_of_learners_are_those_of_one() -> None:
    """Each learner's gradient is that of its share of the samples."""
    task = TASKS["digits"]
    one, many = (StreamProblem(task, sets(), 1, held_out=10) for _ in range(2))
    one.batch_size, many.batch_size = 6, 2
    model, gradient = one.replica(0, 1)
    gradient(7)
    mean = torch.zeros_like(next(model.parameters()))
    for rank in range(3):
        replica, share = many.replica(rank, 3)
        share(7)
        mean += next(replica.parameters()).grad / 3
    assert torch.allclose(mean, next(model.parameters()).grad, atol=1e-6)
