"""The module says what collectives load: the messages of rings, trees and all pairs.

A collective is one flow with the load of all its messages, because the messages of a
ring or a tree wait for each other: all go on at the pace of the slowest resource.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Barrier,
    Broadcast,
)
from espnet_distopt.simulation.network import Network, Sent, Traffic
from espnet_distopt.simulation.results import Gathering

Pattern = Callable[[Network, Sequence[int], float], Traffic]
"""A function that returns what a collective of some bytes among some ranks costs."""

WithTensor = AllReduceMean | Broadcast | AllToAll | AllGather


class CollectiveTraffic:
    """What the collectives of a run cost; that of each kind is computed once.

    Means and broadcasts travel along a ring, as in gloo, and so do the rows of an
    all-gather. An all-to-all sends a message between each pair of learners.

    Args:
        network: the network.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[tuple[Pattern, tuple[int, ...], float], Traffic] = {}

    def of(self, ranks: tuple[int, ...], effect: Gathering) -> Traffic:
        """Return what a collective among `ranks` costs."""
        if len(ranks) == 1 or isinstance(effect, Barrier):
            return Traffic({}, 0.0)
        key = _pattern(effect), ranks, _nbytes(effect, len(ranks))
        if key not in self._known:
            self._known[key] = key[0](self._network, *key[1:])
        return self._known[key]


def _pattern(effect: Gathering) -> Pattern:
    match effect:
        case AllReduceMean():
            return all_reduce
        case Broadcast():
            return broadcast
        case AllGather():
            return all_gather
        case _:
            return all_pairs


def _nbytes(effect: WithTensor, size: int) -> float:
    """Return the bytes of the tensor, or those of it that go to each other learner."""
    nbytes = effect.tensor.nbytes
    return nbytes / size if isinstance(effect, AllToAll) else nbytes


def all_reduce(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what a ring all-reduce of `nbytes` among `ranks` costs.

    Each learner sends 2 (N - 1) parts of n / N bytes to the next one, one after the
    other.
    """
    size, steps = len(ranks), 2 * (len(ranks) - 1)
    load, latency = network.traffic(_around(ranks, steps * nbytes / size))
    return Traffic(load, steps * latency)


def tree_all_reduce(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what an all-reduce along two binary trees of nodes costs.

    Half of the bytes take each tree, and the nodes that are leaves of the one are inner
    nodes of the other, so that each node sends about as much (Sanders, Speck and
    Traeff, Parallel Computing 2009). Inside a node, the learners form a chain.
    """
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank // network.per_node, []).append(rank)
    chains = [list(pairwise(chain)) for chain in nodes.values()]
    edges = [(a, b, nbytes) for chain in chains for a, b in chain]
    heads = [chain[0] for chain in nodes.values()]
    for order in (heads, heads[::-1]):
        places = range(1, len(order))
        edges += [(order[at], order[(at - 1) // 2], nbytes / 2) for at in places]
    both = [*edges, *((receiver, sender, size) for sender, receiver, size in edges)]
    depth = max(len(heads).bit_length() - 1, 0) * network.between.latency
    chain = max(len(chain) for chain in chains) * network.inside.latency
    return Traffic(network.traffic(both).load, 2 * (depth + chain))


def broadcast(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what a broadcast costs in which each of `ranks` passes the data on."""
    load, latency = network.traffic(_around(ranks, nbytes)[:-1])
    return Traffic(load, (len(ranks) - 1) * latency)


def all_gather(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what it costs to pass `nbytes` from each of `ranks` around a ring.

    The pieces of a row follow each other closely, and a short row is sent to all at
    once, so that the latency is that of one message.
    """
    return network.traffic(_around(ranks, (len(ranks) - 1) * nbytes))


def all_pairs(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what it costs if each of `ranks` sends `nbytes` to each other."""
    pairs = [(a, b, nbytes) for a in ranks for b in ranks if a != b]
    return network.traffic(pairs)


def _around(ranks: Sequence[int], nbytes: float) -> list[Sent]:
    """Return the messages of a ring: each of `ranks` sends to the next one."""
    following = [*ranks[1:], ranks[0]]
    return [(a, b, nbytes) for a, b in zip(ranks, following, strict=True)]
