"""Block methods whose workers are nodes: learners that average their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Adam

from espnet_distopt.algorithms import build, check
from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Compute, Network, Simulation
from tests import virtual
from tests.replicas import Point, filter_of

BLOCK = ["bmuf", "bmuf_adam", "local_sgd", "slowmo", "diloco"]
SAMPLES = [3.0, 1.0, 2.0, 5.0, 1.0, 4.0, 2.0, 2.0]
"""The samples of each learner's batch, by which gradients are weighted."""


def noise(rank: int, step: int) -> Tensor:
    return virtual.drawn(1000 * rank + step, 2) + 0.5


seeded = virtual.along_each(noise)


def started(
    name: str, size: int, make: Any = Adam, gradient: Any = seeded, **options: Any
) -> Simulation:
    learners = virtual.points(name, size, gradient, make, **options)
    for virtual_, samples in zip(learners, SAMPLES, strict=False):
        virtual_.learner.samples = samples
    return virtual.started(learners, Compute(spread=0.5), Network(per_node=2))


def models(simulation: Simulation) -> Tensor:
    params = [v.learner.params for v in simulation.learners]
    return torch.stack([simulation.consensus(), *params])


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", ["local_sgd", "bmuf", "bmuf_adam"])
@pytest.mark.parametrize("size", [2, 7])
def test_one_node_is_allreduce_bit_for_bit(size: int, name: str, delay: int) -> None:
    """The mean of seven equal replicas often has other bits than they have."""
    options = {"per_node": size, "period": 3, "delay": delay}
    outcomes = []
    for algorithm, given in ((name, options), ("allreduce", {})):
        simulation = started(algorithm, size, **given)
        simulation.epoch(7)
        simulation.epoch(4)
        outcomes.append(models(simulation))
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", BLOCK)
@pytest.mark.parametrize(("size", "per_node"), [(4, 2), (6, 3), (6, 2), (4, 4)])
def test_a_node_is_one_learner_with_the_batch_of_all(
    size: int, per_node: int, name: str, delay: int
) -> None:
    """Learners of one each get the weighted mean of a node's gradients."""
    options = {"period": 3, "delay": delay}
    nodes = started(name, size, per_node=per_node, **options)

    def mean(number: int, step: int) -> Tensor:
        ranks = range(number * per_node, (number + 1) * per_node)
        weighted = [SAMPLES[rank] * noise(rank, step) for rank in ranks]
        return torch.stack(weighted).sum(0) / sum(SAMPLES[rank] for rank in ranks)

    by_node = virtual.along_each(mean)
    workers = started(name, size // per_node, gradient=by_node, **options)
    for steps in (7, 5):
        nodes.epoch(steps)
        workers.epoch(steps)
        found, expected = models(nodes), models(workers)
        places = [0, *(1 + rank // per_node for rank in range(size))]
        torch.testing.assert_close(found, expected[places], rtol=1e-10, atol=1e-12)
    one: Any = nodes.learners[0].algorithm
    other: Any = workers.learners[0].algorithm
    assert (one.rule, filter_of(one).rho, filter_of(one).taken) == (
        other.rule,
        filter_of(other).rho,
        filter_of(other).taken,
    )


def test_replicas_of_a_node_are_equal_in_every_step_and_nodes_are_not() -> None:
    seen: dict[tuple[int, int], list[float]] = {}

    def recorded(model: Point, rank: int) -> Callable[[int], float]:
        descend = seeded(model, rank)

        def record(step: int) -> float:
            seen[rank, step] = model.x.tolist()
            return descend(step)

        return record

    simulation = started(
        "bmuf_adam", 6, gradient=recorded, per_node=3, period=4, delay=2
    )
    simulation.epoch(11)
    for step in range(11):
        by_rank = [seen[rank, step] for rank in range(6)]
        assert by_rank[:3] == [by_rank[0]] * 3
        assert by_rank[3:] == [by_rank[3]] * 3
        assert (by_rank[0] == by_rank[3]) == (step == 0)
    for v in simulation.learners:
        assert v.algorithm.equal_replicas(v.learner) == (
            (0, 1, 2) if v.learner.rank < 3 else (3, 4, 5)
        )


@pytest.mark.parametrize(
    ("name", "end"), [("bmuf", "finish"), ("hadpsgd", "end_steps")]
)
@pytest.mark.parametrize("late", [0, 1])
def test_unequal_steps_inside_a_node_are_an_error_of_all_its_learners(
    name: str, end: str, late: int
) -> None:
    learners = virtual.points(name, 4, seeded, per_node=2)[:2]
    programs: list[Any] = []
    for rank, v in enumerate(learners):
        v.gradient(0)
        last = "after_backward" if rank == late else end
        programs.append(getattr(v.algorithm, last)(v.learner))
    for program in programs:
        program.send(None)
    message = torch.stack([v.learner.gradient_buffer for v in learners]).mean(0)
    for program in programs:
        with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
            program.send(message)


@pytest.mark.parametrize("name", BLOCK)
def test_what_cannot_run_is_refused_in_one_line(name: str) -> None:
    for conf, size, words in (
        ({"per_node": 3}, 4, "4 learners do not make nodes of per_node = 3 each"),
        ({"per_node": 0}, 4, "per_node must be >= 1, not 0"),
        ({"per_node": "two"}, 4, "per_node must be an integer, not 'two'"),
    ):
        with pytest.raises(InputError, match=words) as error:
            check(name, conf, size)
        assert "\n" not in str(error.value)


def test_another_per_node_is_refused_only_within_a_block() -> None:
    first, other = (
        started("bmuf", 4, per_node=per_node).learners[0].algorithm
        for per_node in (2, 1)
    )
    state = first.state_dict()
    other.load_state_dict(state)
    with pytest.raises(InputError, match=r"4 learners with per_node = 2 .* 4 with"):
        (fragment,) = state["fragments"]
        other.load_state_dict(state | {"fragments": [fragment | {"steps": 1}]})


@pytest.mark.parametrize(
    ("name", "conf", "momentum", "batches"),
    [
        ("bmuf", {}, 0.75, 4),
        ("bmuf_adam", {}, 0.75, 4),
        ("bmuf", {"momentum": 0.9, "second_moment": "local"}, 0.9, 1),
        ("local_sgd", {}, 0.0, 4),
    ],
)
def test_momentum_and_the_second_moment_are_those_of_the_nodes(
    name: str, conf: dict[str, Any], momentum: float, batches: int
) -> None:
    learners = virtual.points("bmuf", 8, seeded, per_node=2)
    algorithm: Any = build(name, {**conf, "per_node": 2}, learners[3].learner)
    assert algorithm.rule.momentum == momentum
    assert algorithm.averaged_batches == batches
