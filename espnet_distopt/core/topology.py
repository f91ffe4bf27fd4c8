"""Topologies: the learners with which a learner averages, and with which weights.

Gossip runs on graphs whose edges join an active and a passive learner, which are called
two colours. D-PSGD averages by a mixing matrix.
"""

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Topology = Literal["ring", "randomized_ring", "complete"]
"""The topologies of D-PSGD: the graph on which learners average."""


def is_active(rank: int) -> bool:
    """Return whether the learner invites others: even ranks do, odd ones answer.

    Edges join learners of different colour only, so that no cycle of waits can form.
    """
    return rank % 2 == 0


def node_ranks(rank: int, per_node: int) -> tuple[int, ...]:
    """Return the ranks on the node of `rank`; ranks are numbered node by node.

    Example:
        >>> node_ranks(5, 4)
        (4, 5, 6, 7)
    """
    first = rank // per_node * per_node
    return tuple(range(first, first + per_node))


def two_coloured_ring(rank: int, size: int) -> tuple[int, ...]:
    """Return the neighbours of `rank` on a ring whose edges join active and passive.

    The two ends of an odd ring are both active, so no edge joins them: it is a path.

    Example:
        >>> two_coloured_ring(0, 4)
        (1, 3)
        >>> two_coloured_ring(0, 5)
        (1,)
        >>> two_coloured_ring(1, 2)
        (0,)
        >>> two_coloured_ring(0, 1)
        ()
    """
    nearest = {rank - 1, rank + 1}
    if size % 2 == 0:
        nearest = {near % size for near in nearest}
    return tuple(near for near in sorted(nearest) if 0 <= near < size)


def other_colour(rank: int, size: int) -> tuple[int, ...]:
    """Return all passive learners for an active one, and all active for a passive one.

    Example:
        >>> other_colour(0, 5)
        (1, 3)
        >>> other_colour(3, 5)
        (0, 2, 4)
    """
    return tuple(range((rank + 1) % 2, size, 2))


def ring_weights(rank: int, order: Sequence[int]) -> dict[int, float]:
    """Return the weights with which `rank` averages on a ring: learner -> weight.

    It gives a third each to itself, the learner before it and the learner after it.

    Args:
        rank: the learner's rank.
        order: the ranks of all learners in the order of the ring; any number of them.

    Example:
        >>> ring_weights(0, [2, 0, 3, 1]) == {0: 1 / 3, 2: 1 / 3, 3: 1 / 3}
        True
        >>> ring_weights(0, [0, 1]) == {0: 1 / 3, 1: 2 / 3}
        True
    """
    place = order.index(rank)
    three = [order[p % len(order)] for p in (place - 1, place, place + 1)]
    return {learner: three.count(learner) / 3 for learner in sorted(set(three))}


def randomized_ring(seed: int, k: int, size: int) -> list[int]:
    """Return the order of the learners on the ring of mixing `k`: a random permutation.

    The order depends on nothing but the arguments, so that all learners know it without
    a message.

    Args:
        seed: seed of the orders.
        k: number of the mixing.
        size: number of learners, N.
    """
    order = list(range(size))
    random.Random(f"{seed} ring {k}").shuffle(order)
    return order


def mixing_weights(
    topology: Topology, rank: int, size: int, k: int = 0, seed: int = 0
) -> dict[int, float]:
    """Return row `rank` of the mixing matrix W_k: learner -> weight, in order of ranks.

    Args:
        topology: ring, randomized_ring or complete (1/N each).
        rank: the learner's rank.
        size: number of learners, N.
        k: number of the mixing.
        seed: seed of the orders of the randomized ring.
    """
    match topology:
        case "ring":
            return ring_weights(rank, range(size))
        case "randomized_ring":
            return ring_weights(rank, randomized_ring(seed, k, size))
        case "complete":
            return dict.fromkeys(range(size), 1 / size)


def mixing_matrix(
    topology: Topology, size: int, k: int = 0, seed: int = 0
) -> NDArray[np.float64]:
    """Return W_k (N, N), whose row i has the weights with which learner i averages.

    The matrix is symmetric, and its rows and columns sum to 1, so that mixing conserves
    the mean over the learners.

    Args:
        topology: ring, randomized_ring or complete.
        size: number of learners, N.
        k: number of the mixing.
        seed: seed of the orders of the randomized ring.
    """
    matrix = np.zeros((size, size))
    for rank in range(size):
        row = mixing_weights(topology, rank, size, k, seed)
        matrix[rank, list(row)] = list(row.values())
    return matrix


def spectral_gap(matrix: NDArray[np.float64]) -> float:
    """Return 1 - |lambda_2| of a symmetric mixing matrix (N, N), N >= 2.

    Each mixing multiplies the distance of the learners from their mean by |lambda_2| at
    most.

    Args:
        matrix: the mixing matrix (N, N).
    """
    moduli = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(1 - moduli[-2])
