"""AD-PSGD in simulated clusters: exact sums, ends, stragglers.

The vectors are AD3, AD5 and AD6 of docs/algorithms/gossip.md.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.simulation import Compute, Link, Network, Simulation
from tests import virtual

CLUSTERS = [(size, topology) for topology in ("ring", "random") for size in range(1, 8)]


def dyadic(size: int, seed: int, **options: Any) -> tuple[Simulation, list[float]]:
    """Learners at integers, in a random cluster; lr = 0."""
    source = random.Random(seed)
    learners = virtual.points(
        "adpsgd", size, virtual.towards_rank, seed=seed, **options
    )
    stragglers = {rank: 1 + 9 * source.random() for rank in range(size // 2)}
    simulation = Simulation(
        learners,
        Compute(seconds=1, spread=1, seed=seed, slowdown=stragglers),
        Network(between=Link(latency=10 ** source.uniform(-3, 1)), spread=1, seed=seed),
    )
    simulation.start()
    starts = [float(source.randrange(-64, 64)) for _ in range(size)]
    virtual.place(learners, starts)
    return simulation, starts


@pytest.mark.parametrize(("size", "topology"), CLUSTERS)
def test_ad3_sum_is_conserved_exactly(size: int, topology: str) -> None:
    """Integers after at most 32 halvings fit into a float64: nothing is rounded."""
    mixed = 0.0
    for seed in range(6):
        simulation, starts = dyadic(size, seed, topology=topology, max_staleness=3)
        for steps in (5, 3):
            simulation.epoch(steps)
            assert sum(virtual.x(v)[0] for v in simulation.learners) == sum(starts)
        mixed += sum(v.metrics()["exchanges"] for v in simulation.learners)
    assert mixed > 6 * size or size == 1


@pytest.mark.parametrize(("size", "topology"), CLUSTERS)
def test_ad5_random_clusters_come_to_an_end(size: int, topology: str) -> None:
    """Random steps and messages, stragglers, uneven and empty epochs, odd numbers."""
    for seed in range(6):
        source = random.Random(f"ends {seed}")
        simulation, _ = dyadic(size, seed, topology=topology, max_staleness=2)
        epochs = [[source.choice([0, 1, 2, 7]) for _ in range(size)] for _ in range(3)]
        for steps in epochs:
            simulation.epoch(steps)
            assert not simulation.in_flight
        done = [virtual_.learner.steps for virtual_ in simulation.learners]
        assert done == [sum(column) for column in zip(*epochs, strict=True)]
        figures = [v.metrics()["exchanges"] for v in simulation.learners]
        actives = simulation.learners[0].algorithm.colours.actives  # type: ignore[attr-defined]
        invited = sum(figures[rank] for rank in actives)
        assert invited == sum(figures) / 2  # each exchange has two ends
        published = [virtual.published(v) for v in simulation.learners]
        assert all(max(p.staleness, default=0) <= 2 for p in published)


def relative_throughput(
    name: str, slowdown: float, steps: Sequence[int], **options: Any
) -> tuple[float, Simulation]:
    """Steps per virtual second, one of the learners slower, beside none slower."""
    size = len(steps)
    simulation = Simulation(
        virtual.points(name, size, virtual.towards_rank, **options),
        Compute(seconds=1, slowdown={size // 2: slowdown}),
    )
    simulation.start()
    simulation.epoch(steps)
    record = simulation.record
    return len(record) / record[-1].seconds / size, simulation


@pytest.mark.parametrize(
    ("slowdown", "topology"), [(2, "ring"), (10, "random"), (100, "ring")]
)
def test_ad6_a_straggler_slows_adpsgd_by_its_own_steps_only(
    slowdown: int, topology: str
) -> None:
    """Everybody trains equally long; the bound is (N - 1 + 1/f) / N, with N = 16."""
    steps = [max(slowdown, 20)] * 16
    steps[8] //= slowdown
    relative, simulation = relative_throughput(
        "adpsgd", slowdown, steps, topology=topology
    )
    assert relative == pytest.approx((16 - 1 + 1 / slowdown) / 16, rel=0.01)
    for rank in set(range(16)) - {8}:
        seconds = [s.seconds for s in simulation.record if s.rank == rank]
        assert len(seconds) / seconds[-1] >= 0.9
    ages = [age for v in simulation.learners for age in virtual.published(v).staleness]
    assert max(ages) <= 16


@pytest.mark.parametrize("name", ["allreduce", "dpsgd"])
@pytest.mark.parametrize("slowdown", [2, 10, 100])
def test_ad6_a_straggler_slows_synchronous_learners_to_its_pace(
    name: str, slowdown: int
) -> None:
    if name not in ALGORITHMS:
        pytest.skip(f"no {name}")
    relative, _ = relative_throughput(name, slowdown, [10] * 16)
    assert relative == pytest.approx(1 / slowdown, rel=0.05)


def test_one_learner_keeps_no_copies() -> None:
    (learner,) = virtual.points("adpsgd", 1, virtual.towards_rank)
    assert virtual.published(learner).begin_exchange().numel() == 0
