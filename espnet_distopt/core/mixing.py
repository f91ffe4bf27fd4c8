"""Mixing matrices: with which weights the learners of D-PSGD average in each round.

Row i of the matrix W_k holds the weights of learner i in mixing k. All matrices are
symmetric, and their rows and columns sum to 1, so that mixing conserves the mean.
"""

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.core.topology import node_ranks

Topology = Literal["ring", "randomized_ring", "alternating", "complete"]
"""The topologies of D-PSGD.

A ring has weights of 1/3, for the learner and for those before and after it. A
randomized ring has another order in each mixing. The alternating exponential ring (Wang
et al. 2024, arXiv 2410.11998) averages over the learners of a node, then over those of
two nodes, whose numbers differ in one bit, and so on. A complete graph has weights of
1/N.
"""


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
    """
    order = list(range(size))
    random.Random(f"{seed} ring {k}").shuffle(order)
    return order


def alternating_group(rank: int, size: int, per_node: int, k: int) -> tuple[int, ...]:
    """Return the ranks that average with `rank` in mixing `k`, itself among them.

    Args:
        rank: the learner's rank; ranks are numbered node by node.
        size: number of learners, N = per_node 2^d.
        per_node: number of learners on each node.
        k: number of the mixing; even ones are inside the nodes.

    Example:
        >>> [alternating_group(0, 8, 2, k) for k in range(4)]
        [(0, 1), (0, 1, 2, 3), (0, 1), (0, 1, 4, 5)]
    """
    own, bits = node_ranks(rank, per_node), _bits(size // per_node)
    if k % 2 == 0 or bits == 0:
        return own
    peer = rank // per_node ^ 1 << k // 2 % bits
    return tuple(sorted(own + node_ranks(peer * per_node, per_node)))


def rounds_of(topology: Topology, size: int, per_node: int = 1) -> int:
    """Return after how many mixings the matrices repeat, or 1 if each mixes all.

    In as many mixings, from any one on, averages join all learners, directly or through
    others.

    Args:
        topology: the topology.
        size: number of learners, N.
        per_node: number of learners on each node; only `alternating` depends on it.
    """
    return max(1, 2 * _bits(size // per_node)) if topology == "alternating" else 1


def _bits(nodes: int) -> int:
    """Return the number of bits in which the numbers of 2^d nodes differ, d."""
    return (nodes - 1).bit_length()


def mixing_weights(
    topology: Topology,
    rank: int,
    size: int,
    k: int = 0,
    seed: int = 0,
    per_node: int = 1,
) -> dict[int, float]:
    """Return row `rank` of the mixing matrix W_k: learner -> weight, in order of ranks.

    Args:
        topology: the topology; alternating needs 2^d nodes.
        rank: the learner's rank.
        size: number of learners, N.
        k: number of the mixing.
        seed: seed of the orders of the randomized ring.
        per_node: number of learners on each node; only `alternating` depends on it.
    """
    match topology:
        case "ring":
            return ring_weights(rank, range(size))
        case "randomized_ring":
            return ring_weights(rank, randomized_ring(seed, k, size))
        case "alternating":
            group = alternating_group(rank, size, per_node, k)
            return dict.fromkeys(group, 1 / len(group))
        case "complete":
            return dict.fromkeys(range(size), 1 / size)


def mixing_matrix(
    topology: Topology, size: int, k: int = 0, seed: int = 0, per_node: int = 1
) -> NDArray[np.float64]:
    """Return W_k (N, N), whose row i has the weights with which learner i averages."""
    matrix = np.zeros((size, size))
    for rank in range(size):
        row = mixing_weights(topology, rank, size, k, seed, per_node)
        matrix[rank, list(row)] = list(row.values())
    return matrix


def spectral_gap(matrix: NDArray[np.float64]) -> float:
    """Return 1 - |lambda_2| of a symmetric mixing matrix (N, N), N >= 2.

    Each mixing multiplies the distance of the learners from their mean by |lambda_2| at
    most.
    """
    moduli = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(1 - moduli[-2])
