"""These tests compare the times of all-to-all and all-gather with sums by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from espnet_distopt.core.effects import (
    AllGather,
    AllToAll,
    Begin,
    Effect,
    NeighbourAllGather,
    Program,
    Wait,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.simulation import Compute, Link, Network, Simulation
from tests.virtual import Toy, points, towards_rank

NETWORK = Network(
    inside=Link(latency=1, bandwidth=160),
    between=Link(latency=2, bandwidth=16),
    per_node=2,
)
"""A message of 40 float32 leaves in 1 s inside a node, in 10 s between nodes."""


def all_to_all(ranks: tuple[int, ...]) -> AllToAll:
    return AllToAll(torch.ones(len(ranks), 40), ranks)


def all_gather(ranks: tuple[int, ...]) -> AllGather:
    return AllGather(torch.ones(40), ranks)


@pytest.mark.parametrize(
    ("effect", "size", "ranks", "seconds"),
    [
        (all_to_all, 2, (0, 1), 1 + 1),
        (all_to_all, 3, (0, 1, 2), 2 * 10 + 2),  # learner 2 is alone on its node
        (all_to_all, 4, (0, 1, 2, 3), 2 * 10 + 2),  # near messages pass other links
        (all_to_all, 4, (0, 2), 10 + 2),
        (all_to_all, 4, (2, 3), 1 + 1),
        (all_gather, 2, (0, 1), 1 + 1),
        (all_gather, 3, (0, 1, 2), 2 * 10 + 2),
        (all_gather, 4, (0, 1, 2, 3), 3 * 10 + 2),  # all rows pass each link of a ring
        (all_gather, 4, (0, 2), 10 + 2),
        (all_gather, 4, (2, 3), 1 + 1),
    ],
)
def test_all_send_each_other_as_many_bytes(
    effect: Callable[[tuple[int, ...]], Effect],
    size: int,
    ranks: tuple[int, ...],
    seconds: float,
) -> None:
    def after_step(learner: Learner) -> Program:
        if learner.rank in ranks:
            yield effect(ranks)

    learners = points("bmuf", size, towards_rank)
    for virtual in learners:
        virtual.algorithm = Toy(after_step)
    simulation = Simulation(learners, Compute(seconds=8), NETWORK)
    simulation.epoch(1)
    assert simulation.seconds == 8 + seconds
    assert learners[ranks[0]].metrics()["bytes"] == 160 * (len(ranks) - 1)


@pytest.mark.parametrize(("card", "seconds"), [(None, 10), (16, 20), (32, 10)])
def test_learners_of_a_node_share_its_card(card: int | None, seconds: float) -> None:
    """Two learners of each node send a message to the other node at the same time."""

    def after_step(learner: Learner) -> Program:
        yield Wait((yield Begin(neighbours(learner.rank ^ 2))))

    learners = points("bmuf", 4, towards_rank)
    for virtual in learners:
        virtual.algorithm = Toy(after_step)
    network = NETWORK if card is None else replace(NETWORK, card=card)
    simulation = Simulation(learners, Compute(seconds=8), network)
    simulation.epoch(1)
    assert simulation.seconds == pytest.approx(8 + seconds + 2)


def neighbours(peer: int) -> NeighbourAllGather:
    return NeighbourAllGather(torch.ones(40), (peer,))
