"""AD-PSGD in the simulation: invariants after every event of random schedules."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from virtual import place, points, published, towards_rank, x

from espnet_distopt.drivers.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)

SIZES = [2, 4, 8]


def spread_of(learners: Sequence[VirtualLearner]) -> float:
    values = [x(v)[0] for v in learners]
    return max(values) - min(values)


def total(simulation: Simulation) -> float:
    """Sum of parameters and corrections: pending, or still in an exchange."""
    values = 0.0
    for virtual in simulation.learners:
        values += sum(x(virtual)) + published(virtual)._pending.sum().item()
    for transfer in simulation.in_flight.values():
        values += (transfer.received - transfer.sent).sum().item() / 2
    return values


@pytest.mark.parametrize(("size", "schedules"), [(2, 300), (4, 150), (8, 60)])
def test_adpsgd_conserves_the_sum_after_every_event(size: int, schedules: int) -> None:
    one_ended = 0
    for seed in range(schedules):
        source = random.Random(seed)
        starts = [source.uniform(-1, 1) for _ in range(size)]
        steps = [source.randrange(5) for _ in range(size)]
        expected = 2 * sum(starts)

        def check(simulation: Simulation, expected: float = expected) -> None:
            nonlocal one_ended
            one_ended += len(simulation.in_flight) % 2
            assert total(simulation) == pytest.approx(expected, abs=1e-12)

        latency = 10 ** source.uniform(-3, 1)
        simulation = Simulation(
            points("adpsgd", size, towards_rank, seed=seed, max_staleness=3),
            Compute(seconds=1, spread=1, seed=seed),
            Network(between=Link(latency=latency), spread=1, seed=seed),
        )
        simulation.start()
        place(simulation.learners, starts)
        simulation.check = check
        simulation.epoch(steps)
        simulation.epoch(1)
        assert not simulation.in_flight
        final = sum(sum(x(v)) for v in simulation.learners)
        assert final == pytest.approx(expected, abs=1e-12), f"seed {seed}"
    assert one_ended > schedules  # states in which one end has corrected, one has not


@pytest.mark.parametrize("size", SIZES)
def test_adpsgd_spread_shrinks(size: int) -> None:
    simulation = Simulation(points("adpsgd", size, towards_rank), Compute(spread=0.3))
    simulation.start()
    place(simulation.learners, [float(rank) for rank in range(size)])
    spreads = [spread_of(simulation.learners)]
    for _ in range(4):
        simulation.epoch(50)
        spreads.append(spread_of(simulation.learners))
    assert all(b < a / 2 or b < 1e-12 for a, b in pairwise(spreads))
    middle = pytest.approx((size - 1) / 2, abs=1e-3)
    assert simulation.consensus().tolist() == [middle, middle]


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_adpsgd_staleness_is_bounded_and_reached(bound: int) -> None:
    """Messages that take many steps: training must wait for them."""
    simulation = Simulation(
        points("adpsgd", 4, towards_rank, max_staleness=bound),
        Compute(seconds=1, spread=0.5),
        Network(between=Link(latency=20), spread=0.5),
    )
    simulation.start()
    simulation.epoch(60)
    ages = [age for v in simulation.learners for age in published(v).staleness]
    assert max(ages) == bound
    assert simulation.seconds > 200


def test_adpsgd_one_exchange_costs_its_bytes() -> None:
    simulation = Simulation(points("adpsgd", 4, towards_rank))
    simulation.start()
    for virtual in simulation.learners:
        virtual.metrics()
    simulation.epoch(10)
    for virtual in simulation.learners:
        figures = virtual.metrics()
        assert figures["exchanges"] > 0
        assert figures["bytes"] == 2 * 8 * figures["exchanges"]
        assert virtual.metrics()["bytes"] == 0


def test_unequal_epochs_of_adpsgd_end() -> None:
    simulation = Simulation(points("adpsgd", 4, towards_rank), Compute(spread=1))
    simulation.start()
    for steps in ([0, 9, 3, 1], [5, 0, 0, 0], [0, 0, 0, 0]):
        simulation.epoch(steps)
    assert [v.learner.steps for v in simulation.learners] == [5, 9, 3, 1]
