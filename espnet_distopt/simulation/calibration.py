"""What a cluster is like, from what was measured on it.

The measured figures are bandwidths of pairs of learners that exchange at one time. A
pair alone shows its own link. Pairs that are slower together than one is alone share
something: the network card of two nodes, the bus inside a node, or the switch.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from espnet_distopt.simulation.cluster_file import StepTime
from espnet_distopt.simulation.network import Link, Network

SHARES = 0.9
"""Pairs share something if each has less than this part of what one has alone."""

LINKS = {
    "between": "between",
    "card": "between",
    "inside": "inside",
    "bus": "inside",
    "switch": "between",
}
"""The link that messages pass in each of the `experiments`."""

EQUAL = 0.05
"""Batches are of one size if their standard deviation is less than this part of it."""


class Computed(NamedTuple):
    """Steps of a training, and how long a learner has computed for them.

    Attributes:
        batches: the number of steps.
        samples: the number of samples in their batches.
        seconds: the seconds of computing, without those of communication.
    """

    batches: float
    samples: float
    seconds: float


def experiments(size: int, per_node: int) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs that exchange at one time, by what they show.

    Args:
        size: the number of learners.
        per_node: the number of learners of a node. Ranks are numbered node by node, and
            there are at least two nodes.
    """
    nodes = size // per_node
    found = {"between": [(0, per_node)]}
    if per_node > 1:
        found["card"] = [(k, per_node + k) for k in range(per_node)]
        found["inside"] = [(0, 1)]
    if per_node > 3:
        found["bus"] = [(k, k + 1) for k in range(0, per_node - 1, 2)]
    if nodes > 3:
        found["switch"] = [
            (2 * pair * per_node + k, (2 * pair + 1) * per_node + k)
            for pair in range(nodes // 2)
            for k in range(per_node)
        ]
    return found


def network(
    per_node: int,
    pairs: Mapping[str, Sequence[tuple[int, int]]],
    bandwidths: Mapping[str, float],
    latencies: Mapping[str, float],
) -> Network:
    """Return the network that the measured figures describe.

    Args:
        per_node: the number of learners of a node.
        pairs: the pairs of each of the `experiments`.
        bandwidths: the bytes a second of each pair in each direction, by experiment.
        latencies: the seconds of an empty message, for "between" and "inside".
    """
    links = {
        name: Link(latency=seconds, bandwidth=bandwidths[name])
        for name, seconds in latencies.items()
    }
    shared = {}
    # Messages in both directions pass the bus and the switch, and a card in one.
    for name, less_shared, directions in (
        ("card", "between", 1),
        ("bus", "inside", 2),
        ("switch", "card", 2),
    ):
        if name not in bandwidths:
            continue
        own = bandwidths[LINKS[name]]
        if bandwidths[name] < SHARES * bandwidths.get(less_shared, own):
            together = directions * len(pairs[name]) * bandwidths[name]
            shared[name] = max(together, own)
    return Network(per_node=per_node, **links, **shared)  # type: ignore[arg-type]


def step_time(computed: Sequence[Computed]) -> StepTime:
    """Return how long a step takes by the size of its batch: the least squares.

    Neither part is below 0. If all batches are of one size, the time is said to grow
    with the batch alone, because nothing tells the two parts apart.

    Args:
        computed: steps of a training, of at least one sample.
    """
    bb = sum(c.batches * c.batches for c in computed)
    bs = sum(c.batches * c.samples for c in computed)
    ss = sum(c.samples * c.samples for c in computed)
    bt = sum(c.batches * c.seconds for c in computed)
    st = sum(c.samples * c.seconds for c in computed)
    determinant = bb * ss - bs * bs
    if determinant <= EQUAL**2 * bb * ss:
        return StepTime(sample=st / ss)
    fixed = (ss * bt - bs * st) / determinant
    sample = (bb * st - bs * bt) / determinant
    if fixed < 0:
        return StepTime(sample=st / ss)
    if sample < 0:
        return StepTime(fixed=bt / bb)
    return StepTime(fixed=fixed, sample=sample)
