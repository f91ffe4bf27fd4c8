"""These tests run AD-PSGD in the simulation; others draw schedules (`checks`)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    VirtualLearner,
)
from espnet_distopt.simulation.gossip import VirtualGossip
from tests.virtual import place, points, published, started, towards_rank, x


def spread_of(learners: Sequence[VirtualLearner]) -> float:
    values = [x(v)[0] for v in learners]
    return max(values) - min(values)


@pytest.mark.parametrize(
    ("size", "topology"),
    [(2, "ring"), (3, "ring"), (8, "ring"), (5, "random"), (8, "randomized_ring")],
)
def test_adpsgd_spread_shrinks(size: int, topology: str) -> None:
    learners = points("adpsgd", size, towards_rank, topology=topology)
    simulation = started(learners, Compute(spread=0.3))
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
    """Messages take many steps, so the training must wait for them."""
    simulation = started(
        points("adpsgd", 4, towards_rank, max_staleness=bound),
        Compute(seconds=1, spread=0.5),
        Network(between=Link(latency=20), spread=0.5),
    )
    simulation.epoch(60)
    ages = [age for v in simulation.learners for age in published(v).staleness]
    assert max(ages) == bound
    assert simulation.seconds > 200


def test_a_slow_learner_answers_from_its_first_batch_on() -> None:
    """If a slow learner gossiped only after its step, others would wait for it."""
    simulation = started(
        points("adpsgd", 2, towards_rank, max_staleness=1),
        Compute(seconds=1, slowdown={1: 50}),
    )
    simulation.epoch([40, 1])
    assert [step.rank for step in simulation.record] == [0] * 40 + [1]


@pytest.mark.parametrize("topology", ["ring", "random"])
def test_the_end_of_an_epoch_takes_a_mail_for_each_passive_learner(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = []
    mail = VirtualGossip.mail

    def counted(self: VirtualGossip, *arguments: Any) -> None:
        mails.append(arguments[:2])
        mail(self, *arguments)

    monkeypatch.setattr(VirtualGossip, "mail", counted)
    simulation = started(points("adpsgd", 9, towards_rank, topology=topology))
    simulation.epoch(0)
    assert sorted(receiver for _, receiver in mails) == [1, 3, 5, 7]
