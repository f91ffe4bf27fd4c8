"""Which algorithms correct Adam's second moment, and for how many batches."""

import logging
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from espnet_distopt import Session
from espnet_distopt.algorithms import ALGORITHMS, build
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.optimizers.consistent import NOISE, ConsistentSecondMoment
from espnet_distopt.optimizers.noise_share import NoiseShare
from espnet_distopt.simulation import (
    Compute,
    Fault,
)
from tests.processes import launch
from tests.replicas import Point
from tests.virtual import along_each, drawn, points, started

AVERAGING: dict[str, tuple[dict[str, Any], int]] = {
    "adpsgd": ({}, 8),
    "hadpsgd": ({"per_node": 2}, 4),
    "dpsgd": ({}, 8),
    "d1d_model": ({}, 8),
    "slowmo": ({}, 8),
    "local_sgd": ({"period": 4}, 8),
    "bmuf": ({}, 8),
    "bmuf_adam": ({}, 8),
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


@pytest.mark.parametrize(("name", "left"), [("adpsgd", 6), ("hadpsgd", 3)])
def test_batches_are_those_of_the_living(name: str, left: int) -> None:
    mine = learner()
    algorithm = build(name, AVERAGING[name][0], mine)
    algorithm.change_members(mine, mine.members.without([4, 5]))
    assert algorithm.averaged_batches == left
    algorithm.change_members(mine, mine.members.without([2, 3, 6, 7]))
    assert algorithm.averaged_batches == left - {"adpsgd": 4, "hadpsgd": 2}[name]
    algorithm.change_members(mine, Members(2, tuple(range(8))))
    assert algorithm.averaged_batches == AVERAGING[name][1]
    alone = build(name, {**AVERAGING[name][0], "second_moment": "local"}, learner())
    alone.change_members(learner(), mine.members.without([4, 5]))
    assert alone.averaged_batches == 1


@pytest.mark.parametrize("options", [{}, {"per_node": 2}])
def test_block_methods_count_the_workers_that_ended_the_block(
    options: dict[str, Any],
) -> None:
    mine = learner()
    algorithm = build("local_sgd", options, mine)
    algorithm.change_members(mine, mine.members.without([4, 5]))
    assert algorithm.averaged_batches == 6 // options.get("per_node", 1)


@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam"])
def test_momentum_counts_fewer_batches_the_further_it_moves_the_model(
    name: str,
) -> None:
    """N / gain, from all of them to one; the state of the blocks says which."""
    options = {"period": 1}
    algorithm = build(name, options, learner())
    assert algorithm.averaged_batches == 8
    state = algorithm.state_dict()
    for agreeing, share in ((1000.0, 1 - math.exp(-1)), (1e6, 1.0)):
        state["fragments"][0]["agreeing"] = agreeing
        again = build(name, options, learner())
        again.load_state_dict(state)
        assert again.averaged_batches == pytest.approx(8 * (1 - share * 7 / 8))
    at_once = build(name, {**options, "warmup": 0}, learner())
    assert at_once.averaged_batches == 1


GRADIENTS = torch.randn(
    3, 8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
"""Of three learners in eight steps."""


def follow(model: Point, optimizer: Optimizer, found: list[torch.Tensor]) -> None:
    """Add what each step adds to the parameters, whatever averages do meanwhile."""

    def before(*_: Any) -> None:
        found.append(-model.x.detach())

    def after(*_: Any) -> None:
        found[-1] += model.x.detach()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


@pytest.mark.parametrize(("name", "of_three"), [("adpsgd", 3), ("local_sgd", 4)])
def test_steps_after_a_death_are_those_of_one_batch_less(
    name: str, of_three: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner 2 dies in the third step; local_sgd learns it when the block ends."""
    monkeypatch.setattr(NoiseShare, "of", lambda self, parameter: 1.0)
    options = {"period": 2} if name == "local_sgd" else {}
    gradients = along_each(lambda rank, step: GRADIENTS[rank, step])
    learners = points(name, 3, gradients, Adam, [0.0, 0.0], **options)
    found: list[list[torch.Tensor]] = [[] for _ in learners]
    for each, steps in zip(learners, found, strict=True):
        follow(each.model, each.optimizer, steps)  # type: ignore[arg-type]
    simulation = started(
        learners, Compute(seconds=1), faults=[Fault(at=2.5, rank=2, kind="crash")]
    )
    simulation.epoch(8)
    for rank in range(2):
        wanted = torch.stack(expected(rank, of_three))
        torch.testing.assert_close(torch.stack(found[rank]), wanted, rtol=1e-9, atol=0)


def expected(rank: int, of_three: int) -> list[torch.Tensor]:
    """Return the updates of a learner alone: with N = 3 in some steps, then N = 2."""
    model = Point([0.0, 0.0])
    optimizer = Adam(model.parameters(), lr=0.1)
    found: list[torch.Tensor] = []
    moment = ConsistentSecondMoment(optimizer, 3)
    follow(model, optimizer, found)
    for step in range(8):
        if step == of_three:
            moment.close()
            moment = ConsistentSecondMoment(optimizer, 2)
        model.x.grad = GRADIENTS[rank, step].clone()
        optimizer.step()
    return found


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(AVERAGING)))
def test_others_leave_the_second_moment_alone(name: str) -> None:
    """Their steps are those of the small batches, or of the whole batch already."""
    assert build(name, {}, learner()).averaged_batches == 1


def distance_gone(name: str, moment: str | None, common: float = 0.0) -> float:
    """Return how far the mean goes where learners see noise about the same slope.

    The moments look back on 200 steps, and the training has 400. `common` is the
    deviation of the noise that all have in common, beside that of their own, 1.
    """
    options = dict(AVERAGING[name][0]) if name in AVERAGING else {}
    if moment is not None:
        options["second_moment"] = moment
    gradients = along_each(
        lambda rank, step: (
            0.2
            + drawn(1000 * step + rank, 100)
            + common * drawn(1000 * step + 999, 100)
        )
    )
    make = partial(AdamW, lr=0.01, betas=(0.9, 0.995))
    simulation = started(points(name, 8, gradients, make, [0.0] * 100, **options))
    simulation.epoch(400)
    return -float(simulation.consensus().mean())


@pytest.mark.parametrize("name", ["local_sgd", "dpsgd", "adpsgd"])
def test_the_mean_goes_as_far_as_with_all_reduce(name: str) -> None:
    whole = distance_gone("allreduce", None)
    assert distance_gone(name, None) == pytest.approx(whole, rel=0.1)
    assert distance_gone(name, "local") < 0.6 * whole


@pytest.mark.parametrize("name", ["local_sgd", "dpsgd", "adpsgd"])
def test_noise_in_common_is_not_taken_for_noise_that_averages_remove(name: str) -> None:
    """Steps that took it so would be 1.7 times as long as those of all-reduce."""
    whole = distance_gone("allreduce", None, common=1.0)
    assert distance_gone(name, None, common=1.0) == pytest.approx(whole, rel=0.1)


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
        with session.consensus():
            pass
    hooks = (
        *optimizer._optimizer_step_pre_hooks,
        *optimizer._optimizer_step_post_hooks,
    )
    assert not hooks, "the session has left hooks behind"
    return NOISE in optimizer.state[model.weight], lines


@pytest.mark.parametrize("delay", [0, 1])
def test_moments_that_are_reset_take_the_noise_with_them(delay: int) -> None:
    """Or the noise of many updates would be held against a moment of one."""
    gradients = along_each(lambda _, step: 1.0 + step % 2)
    options = {"period": 3, "delay": delay, "moments": "reset"}
    learners = points("local_sgd", 2, gradients, Adam, [0.0] * 8, **options)
    simulation = started(learners)
    largest = 0.0
    for _ in range(4):
        simulation.epoch(3 + delay)
        for each in learners:
            state = each.optimizer.state_dict()["state"][0]
            noise = state.get(NOISE, torch.zeros(1)).max().item()
            largest = max(largest, noise / (1 - 0.999 ** max(1, float(state["step"]))))
    assert largest < 1.0, "more than the variance of 1 and 2"


def test_a_late_reset_leaves_an_estimate_of_the_noise() -> None:
    """Of noise with variance 1 the estimate is 1, whatever weight the reset leaves."""
    found: list[tuple[float, float]] = []

    def noise(rank: int, step: int) -> torch.Tensor:
        for state in learners[rank].optimizer.state.values():
            if NOISE in state:
                updates = float(state["step"])
                weight = 1 - 0.999 ** (updates - 1)
                found.append((updates, state[NOISE].mean().item() / weight))
        return drawn(1000 * step + rank, 2000)

    options = {"period": 8, "delay": 4, "moments": "reset"}
    gradients, start = along_each(noise), [0.0] * 2000
    learners = points("local_sgd", 2, gradients, Adam, start, **options)
    started(learners).epoch(40)
    # A reset comes four steps late, and so leaves at most 4 of up to 12 updates.
    counts = {updates for updates, _ in found}
    assert counts == set(range(2, 12))
    for _, estimate in found:
        assert estimate == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay": 3},
        {"exchange": "bfloat16"},
    ],
)
def test_the_noise_is_found_where_first_moments_are_averaged(
    options: dict[str, Any],
) -> None:
    """The mean of 16 learners' moments has less noise than the moment of one."""
    gradients = along_each(lambda rank, step: drawn(1000 * step + rank, 200))
    make = partial(Adam, lr=0.01, betas=(0.9, 0.995))
    options = {"period": 4, "moments": "average", **options}
    learners = points("local_sgd", 16, gradients, make, [0.0] * 200, **options)
    started(learners).epoch(400)
    found = torch.stack(
        [each.optimizer.state_dict()["state"][0][NOISE] for each in learners]
    )
    assert found.mean().item() / (1 - 0.995**399) == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("options", [{}, {"delay": 3}, {"exchange": "bfloat16"}])
def test_the_noise_keeps_its_size_where_momentum_moves_step_counts_ahead(
    options: dict[str, Any],
) -> None:
    """Or steps would be too short for as long as Adam's bias correction counts."""
    gradients = along_each(lambda rank, step: 1 + drawn(1000 * step + rank, 200))
    make = partial(Adam, lr=0.01, betas=(0.9, 0.995))
    options = {"period": 4, **options}
    learners = points("bmuf_adam", 16, gradients, make, [0.0] * 200, **options)
    started(learners).epoch(60)
    states = [each.optimizer.state_dict()["state"][0] for each in learners]
    estimates = [
        state[NOISE].mean() / (1 - 0.995 ** (float(state["step"]) - 1))
        for state in states
    ]
    assert float(states[0]["step"]) > 61
    assert sum(estimates).item() / 16 == pytest.approx(1.0, abs=0.01)
