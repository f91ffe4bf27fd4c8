"""H-ADPSGD: super learners, their equal replicas, their gossip.

The vectors are H1 to H5 of docs/algorithms/gossip.md.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import build, check
from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    VirtualLearner,
)
from tests import virtual
from tests.replicas import Point, run

CLUSTERS = [(4, 2, "ring"), (6, 2, "ring"), (6, 3, "random"), (8, 2, "random")]
"""(learners, learners a node, topology)."""


def cluster(seed: int, per_node: int) -> Any:
    """Random steps and messages, slow links inside nodes, one slow learner."""
    source = random.Random(f"cluster {seed}")
    network = Network(
        inside=Link(latency=0.2),  # so that corrections come while one is passed on
        between=Link(latency=10 ** source.uniform(-3, 1)),
        per_node=per_node,
        spread=1,
        seed=seed,
    )
    return Compute(seconds=1, spread=1, seed=seed, slowdown={0: 3.0}), network


def drawn(model: Point, _: int) -> Callable[[int], float]:
    return virtual.noisy(model)


def nodes(learners: Sequence[VirtualLearner]) -> list[list[VirtualLearner]]:
    found: dict[Any, list[VirtualLearner]] = {}
    for learner in learners:
        algorithm: Any = learner.algorithm
        found.setdefault(algorithm.node.ranks, []).append(learner)
    return list(found.values())


def recorded(
    seen: dict[tuple[int, int], Tensor],
) -> Callable[[Point, int], Callable[[int], float]]:
    """Random gradients; `seen` gets the parameters at the begin of each step."""

    def gradient(model: Point, rank: int) -> Callable[[int], float]:
        descend = virtual.noisy(model)

        def record(step: int) -> float:
            seen[rank, step] = model.x.detach().clone()
            return descend(step)

        return record

    return gradient


@pytest.mark.parametrize(("size", "per_node", "topology"), CLUSTERS)
def test_h1_replicas_of_a_node_are_equal_at_every_step(
    size: int, per_node: int, topology: str
) -> None:
    exchanges = 0.0
    for seed in range(2):
        seen: dict[tuple[int, int], Tensor] = {}
        options = {"per_node": per_node, "topology": topology, "max_staleness": 2}
        learners = virtual.points("hadpsgd", size, recorded(seen), Adam, **options)
        simulation = virtual.started(learners, *cluster(seed, per_node))
        simulation.epoch(8)
        simulation.epoch(5)
        for members in nodes(learners):
            leader, *others = (v.learner for v in members)
            for other in others:
                assert torch.equal(other.params, leader.params)
                for step in range(13):
                    assert torch.equal(seen[other.rank, step], seen[leader.rank, step])
        assert any(not torch.equal(seen[0, k], seen[size - 1, k]) for k in range(13))
        exchanges += sum(v.metrics()["exchanges"] for v in learners)
    assert exchanges > 2 * size // per_node


@pytest.mark.parametrize("size", [2, 3, 4])
def test_h2_one_node_is_allreduce_bit_for_bit(size: int) -> None:
    outcomes = []
    for name, options in (("hadpsgd", {"per_node": size}), ("allreduce", {})):
        learners = virtual.points(name, size, drawn, Adam, **options)
        simulation = virtual.started(learners, *cluster(1, size))
        simulation.epoch(6)
        simulation.epoch(3)
        models = [v.learner.params for v in learners]
        outcomes.append(torch.stack([simulation.consensus(), *models]))
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("bound", [1, 16])
@pytest.mark.parametrize("topology", ["ring", "random"])
def test_h3_one_learner_a_node_is_adpsgd_bit_for_bit(
    size: int, bound: int, topology: str
) -> None:
    outcomes = []
    for name, options in (("hadpsgd", {"per_node": 1}), ("adpsgd", {})):
        shared: dict[str, Any] = {"max_staleness": bound, "topology": topology}
        learners = virtual.points(name, size, drawn, Adam, **options, **shared)
        simulation = virtual.started(learners, *cluster(7, 1))
        simulation.epoch(8)
        simulation.epoch(4)
        outcomes.append(
            (
                [virtual.x(v) for v in learners],
                [v.metrics() for v in learners],
                simulation.consensus().tolist(),
                simulation.record,
            )
        )
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("size", "per_node", "topology"), CLUSTERS)
def test_h4_sum_over_nodes_is_conserved_exactly(
    size: int, per_node: int, topology: str
) -> None:
    """With lr = 0 and integers, which stand some 30 halvings without rounding."""
    for seed in range(4):
        learners = virtual.points(
            "hadpsgd",
            size,
            virtual.towards_rank,
            per_node=per_node,
            topology=topology,
            max_staleness=1 + seed,
        )
        simulation = virtual.started(learners, *cluster(seed, per_node))
        source = random.Random(seed)
        starts = [float(source.randrange(-64, 64)) for _ in nodes(learners)]
        virtual.place(learners, [starts[rank // per_node] for rank in range(size)])
        for steps in (5, 3):
            simulation.epoch(steps)
            ends = [virtual.x(members[0])[0] for members in nodes(learners)]
            assert sum(ends) == sum(starts)
        assert ends != starts


def test_h5_average_beside_the_gradient() -> None:
    """2 nodes x 2, x = (0, 4), g = (1, 3 | 5, 7), lr 0.1: (1.8, 1.4), mean 1.6.

    The first step only publishes; the exchange runs beside the second.
    """
    seen: dict[tuple[int, int], float] = {}

    def gradient(model: Point, rank: int) -> Callable[[int], float]:
        descend = virtual.along(model, [0.0, 2.0 * rank + 1, 0.0])

        def record(step: int) -> float:
            seen[rank, step] = float(model.x[0].detach())
            return descend(step)

        return record

    learners = virtual.points("hadpsgd", 4, gradient, per_node=2)
    simulation = virtual.started(learners, Compute(), Network(per_node=2))
    virtual.place(learners, [0.0, 0.0, 4.0, 4.0])
    for learner in learners:
        learner.optimizer.param_groups[0]["lr"] = 0.1
    simulation.epoch(3)
    after = [seen[rank, 2] for rank in range(4)]
    assert after == pytest.approx([1.8, 1.8, 1.4, 1.4], abs=1e-12)
    assert simulation.consensus().tolist() == pytest.approx([1.6, 1.6], abs=1e-12)


def test_gradients_are_weighted_by_samples_inside_a_node() -> None:
    """(3 x 1 + 1 x 5) / 4 in node 0, (1 x 2 + 0 x 9) / 1 in node 1."""
    gradients, samples = [1.0, 5.0, 2.0, 9.0], [3.0, 1.0, 1.0, 0.0]
    learners = virtual.points(
        "hadpsgd", 4, lambda m, rank: virtual.along(m, gradients[rank:]), per_node=2
    )
    simulation = virtual.started(learners, Compute(), Network())
    virtual.place(learners, [0.0] * 4)
    for learner, weight in zip(learners, samples, strict=True):
        learner.optimizer.param_groups[0]["lr"] = 1.0
        learner.learner.samples = weight
    simulation.epoch(1)
    ends = [virtual.x(v)[0] for v in learners]
    assert ends == pytest.approx([-2.0] * 4, abs=1e-12)


# Ends


@pytest.mark.parametrize(("size", "per_node", "topology"), CLUSTERS)
def test_nodes_may_have_different_numbers_of_steps(
    size: int, per_node: int, topology: str
) -> None:
    """Random clusters, empty epochs; the bound holds, and everybody ends."""
    for seed in range(4):
        source = random.Random(f"ends {seed}")
        options = {"per_node": per_node, "topology": topology, "max_staleness": 2}
        learners = virtual.points("hadpsgd", size, drawn, **options)
        simulation = virtual.started(learners, *cluster(seed, per_node))
        for _ in range(2):
            counts = [source.choice([0, 1, 7]) for _ in nodes(learners)]
            simulation.epoch([counts[rank // per_node] for rank in range(size)])
            assert not simulation.in_flight
        for members in nodes(learners):
            assert len({tuple(virtual.x(v)) for v in members}) == 1
            assert max(virtual.published(members[0]).staleness, default=0) <= 2


@pytest.mark.parametrize("bound", [1, 3])
def test_a_node_waits_for_its_leaders_exchange(bound: int) -> None:
    """Messages that take many steps: the bound is reached, and kept in both nodes."""
    options = {"per_node": 2, "max_staleness": bound}
    learners = virtual.points("hadpsgd", 4, drawn, **options)
    slow = Network(between=Link(latency=20), per_node=2, spread=0.5)
    simulation = virtual.started(learners, Compute(seconds=1, spread=0.5), slow)
    simulation.epoch(30)
    for leader, member in nodes(learners):
        assert max(virtual.published(leader).staleness) == bound
        assert not virtual.published(member).staleness
        assert torch.equal(leader.learner.params, member.learner.params)
    assert simulation.seconds > 100


def test_who_asks_while_a_correction_is_passed_on_gets_this_steps_copy() -> None:
    """Slow links inside nodes: else its correction would be 2 steps old, not 1."""
    learners = virtual.points("hadpsgd", 6, drawn, per_node=2, max_staleness=1)
    link = Link(latency=0.5)
    network = Network(inside=link, between=link, per_node=2, spread=0.5)
    simulation = virtual.started(learners, Compute(seconds=0.5, spread=0.5), network)
    simulation.epoch(30)
    ages = [age for v in learners for age in virtual.published(v).staleness]
    assert max(ages) == 1


@pytest.mark.parametrize("steps", [[3, 4, 3, 3], [3, 3, 5, 2], [0, 1, 0, 0]])
def test_unequal_steps_inside_a_node_leave_nobody_waiting(steps: list[int]) -> None:
    learners = virtual.points("hadpsgd", 4, drawn, per_node=2)
    simulation = virtual.started(learners, Compute(spread=0.5), Network(per_node=2))
    with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
        simulation.epoch(steps)


def test_a_node_that_ends_together_goes_on() -> None:
    learners = virtual.points("hadpsgd", 2, drawn, per_node=2)
    algorithms: list[Any] = [v.algorithm for v in learners]
    before = [virtual.x(v) for v in learners]
    programs = zip(algorithms, learners, strict=True)
    run(*(a.end_steps(v.learner) for a, v in programs))
    assert [virtual.x(v) for v in learners] == before


# Consensus, state, figures


@pytest.mark.parametrize("from_consensus", [False, True])
def test_consensus_is_the_mean_over_the_nodes(from_consensus: bool) -> None:
    options = {"per_node": 2, "from_consensus": from_consensus}
    learners = virtual.points("hadpsgd", 6, virtual.towards_rank, **options)
    simulation = virtual.started(learners, Compute(), Network())
    starts = [1.0, 1.0, 2.0, 2.0, 6.0, 6.0]
    virtual.place(learners, starts)
    assert simulation.consensus().tolist() == [3.0, 3.0]
    kept = [3.0] * 6 if from_consensus else starts
    assert [virtual.x(v)[0] for v in learners] == kept
    copies = [virtual.published(v).begin_exchange()[0].item() for v in learners[::2]]
    assert copies == kept[::2]


def test_only_leaders_keep_copies_and_have_figures() -> None:
    learners = virtual.points("hadpsgd", 4, drawn, per_node=2)
    simulation = virtual.started(learners, Compute(spread=0.3), Network(per_node=2))
    for learner in learners:
        learner.metrics()
    simulation.epoch(10)
    for leader, member in nodes(learners):
        assert virtual.published(leader).begin_exchange().numel() == 2
        assert virtual.published(member).begin_exchange().numel() == 0
        figures, others = leader.metrics(), member.metrics()
        assert figures["exchanges"] > 0
        assert figures["staleness_max"] >= figures["staleness"] >= 0
        sent = figures["bytes"] - 2 * 8 * figures["exchanges"]
        assert others == {"exchanges": 0.0, "bytes": sent}


# What cannot run

WRONG: list[tuple[dict[str, Any], int, int | None, str]] = [
    ({}, 4, None, "set per_node"),
    ({}, 4, 3, "4 learners do not make nodes of 3 each, as the launcher says"),
    ({"per_node": 3}, 4, 2, "4 learners do not make nodes of per_node = 3 each"),
    ({"per_node": 0}, 4, 2, "per_node must be >= 1, not 0"),
    ({"per_node": "two"}, 4, 2, "per_node must be an integer or null, not 'two'"),
    ({"per_node": 2, "max_staleness": 0}, 4, 2, "max_staleness must be >= 1"),
    ({"per_node": 2, "topology": "star"}, 4, 2, "topology must be one of ring, random"),
]


def learner_of(size: int, per_node: int | None, rank: int = 0) -> Learner:
    model = Point([0.0])
    return Learner(model, SGD(model.parameters(), lr=0.1), rank, size, per_node)


@pytest.mark.parametrize(("options", "size", "launched", "words"), WRONG)
def test_what_cannot_run_is_refused(
    options: dict[str, Any], size: int, launched: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        build("hadpsgd", options, learner_of(size, launched))


def test_nodes_are_the_launchers_unless_told_otherwise() -> None:
    check("hadpsgd", {}, 4)
    for options, node in (({}, (4, 5, 6, 7)), ({"per_node": 2}, (6, 7))):
        algorithm: Any = build("hadpsgd", options, learner_of(8, 4, rank=6))
        assert algorithm.node.ranks == node
        assert algorithm.node.leads == (node[0] == 6)


def test_one_learner_needs_no_per_node() -> None:
    (learner,) = virtual.points("hadpsgd", 1, virtual.towards_rank)
    simulation = virtual.started([learner], Compute(), Network())
    simulation.epoch(2)
    assert learner.learner.steps == 2
    assert learner.bytes_sent == 0
