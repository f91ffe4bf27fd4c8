"""The module computes the seconds of a step of each published method on a cluster.

All learners are equally fast and begin together, so the messages of a step are under
way at the same time, and they take as long as the resource that they load most.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from espnet_distopt.simulation.collective_traffic import all_reduce, tree_all_reduce
from espnet_distopt.simulation.network import Network, Sent, Traffic
from prediction.published import Method

BACKWARD = 2 / 3
"""The backward pass's share of a step: it takes twice as long as the forward pass."""


class Load(NamedTuple):
    """What the messages of a step load, in sizes of the model.

    Attributes:
        card: what passes the network card that is loaded most, in one direction.
        bus: what passes the bus inside a node that is loaded most.
    """

    card: float
    bus: float

    def seconds(self, card: float, bus: float) -> float:
        """Return the time, given the seconds of one model through each of the two."""
        return max(self.card * card, self.bus * bus)


def step_seconds(
    method: Method,
    per_node: int,
    learners: int,
    compute: float,
    card: float,
    bus: float,
    overlap: float,
) -> float:
    """Return the mean seconds of a step.

    Args:
        method: the method.
        per_node: the number of learners of a node.
        learners: the number of learners, N.
        compute: the seconds that a learner computes for a step.
        card: the seconds in which a message of the model's size passes a card alone.
        bus: the seconds in which it passes the bus inside a node alone.
        overlap: the share of DDP's communication that its buckets hide behind the
            backward pass, as far as that is long enough.
    """
    steps = [
        min(load.seconds(card, bus) for load in choices)
        for choices in loads(method, per_node, learners)
    ]
    if method == "ddp":
        (seconds,) = steps
        return compute + seconds - min(overlap * seconds, BACKWARD * compute)
    if method == "sgp":  # Its messages are under way when nothing is computed.
        return compute + sum(steps) / len(steps)
    # Those of decentralised Adam are under way during the next step, which waits.
    return sum(max(compute, seconds) for seconds in steps) / len(steps)


@cache
def loads(method: Method, per_node: int, learners: int) -> list[list[Load]]:
    """Return what each step loads until they repeat; NCCL takes the fastest choice."""
    network = Network(per_node=per_node, card=1, bus=1)
    match method:
        case "ddp":
            return [_all_reduce(network, range(learners))]
        case "sgp":
            rounds = [push(learners, distance) for distance in _doubling(learners)]
        case "exp":
            rounds = [pairs(learners, distance) for distance in _doubling(learners)]
        case "aer":
            groups = per_node, 2 * per_node
            return [_all_reduce(network, range(size)) for size in groups]
    return [[_load(network.traffic(messages))] for messages in rounds]


def _doubling(learners: int) -> list[int]:
    return [2**k for k in range(int(math.log2(learners)))]


def push(learners: int, distance: int) -> list[Sent]:
    """Return the messages of a step in which each learner sends to one ahead of it."""
    return [(rank, (rank + distance) % learners, 1.0) for rank in range(learners)]


def pairs(learners: int, distance: int) -> list[Sent]:
    """Return the messages of a step in which pairs at a distance of 2^k exchange."""
    return [(rank, rank ^ distance, 1.0) for rank in range(learners)]


def _all_reduce(network: Network, ranks: Sequence[int]) -> list[Load]:
    return [_load(of(network, ranks, 1.0)) for of in (all_reduce, tree_all_reduce)]


def _load(traffic: Traffic) -> Load:
    most = {"card sends": 0.0, "bus": 0.0}
    for resource, nbytes in traffic.load.items():
        assert isinstance(resource, tuple)
        if resource[0] in most:
            most[resource[0]] = max(most[resource[0]], nbytes)
    return Load(card=most["card sends"], bus=most["bus"])
