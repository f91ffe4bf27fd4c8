"""AD-PSGD in the simulation; random schedules of it are in `test_schedules`."""

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
