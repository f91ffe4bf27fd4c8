"""The module computes how far averaging lets learners drift apart, from its matrices.

Every step adds noise of variance s^2 to each learner's update, which the learning rate
multiplies, and then averages with the others: X <- X W_k - lr G. The noise of a steps
ago is by then mixed by a matrices, so the mean square distance of the learners from
their mean is

    E ||X - xbar||^2 / N = (lr s)^2 sum_a f(a),     f(a) = tr(P V V^T P) / N

where V is the product of the last a matrices, and P takes the mean away. All functions
return f(0), f(1) and so on. Where there is no curvature, the sum over as many steps as
there were is exact.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Shares = NDArray[np.float64]
"""f(a), the share of the noise of `a` steps ago that still keeps learners apart."""

NOTHING = 1e-9
"""The share below which noise is taken to be mixed."""


def of_rounds(rounds: Sequence[Matrix], steps: int) -> Shares:
    """Return the shares where these matrices take turns, the mean over all turns.

    Args:
        rounds: symmetric mixing matrices (N, N).
        steps: the number of shares.
    """
    size, count = len(rounds[0]), len(rounds)
    shares = np.zeros(steps)
    for first in range(count):
        mixed = np.eye(size) - 1 / size
        for age in range(steps):
            share = np.square(mixed).sum() / size
            if share < NOTHING:
                break
            shares[age] += share / count
            mixed = rounds[(first + age) % count] @ mixed
    return shares


def of_random_edges(size: int, steps: int) -> Shares:
    """Return the shares on a ring whose edges fire at random, N / 2 of them in a step.

    The covariance of two learners depends on nothing but their distance on the ring, so
    a vector holds it, and a matrix says what the average of a random pair makes of it.

    Args:
        size: the number of learners, N.
        steps: the number of shares.
    """
    once = np.stack([_of_one_edge(size, distance) for distance in range(size)], axis=1)
    step = np.linalg.matrix_power(once, size // 2)
    covariance = np.eye(size)[0] - 1 / size
    shares = np.zeros(steps)
    for age in range(steps):
        shares[age] = covariance[0]
        covariance = step @ covariance
    return shares


def _of_one_edge(size: int, distance: int) -> Matrix:
    """Return the covariance (N,) after one random pair; before it was 1 at `distance`.

    Averaging places 0 and 1 replaces their rows and columns by the means of both. The
    other pairs are the same ring, turned, so the mean over the turns is taken.
    """
    before = np.zeros((size, size))
    places = np.arange(size)
    before[places, (places + distance) % size] += 0.5
    before[(places + distance) % size, places] += 0.5
    pair = pair_matrix(size, [(0, 1)])
    after = pair @ before @ pair
    turned = [after[places, (places + d) % size].mean() for d in range(size)]
    return np.array(turned)


def of_factor(size: int, factor: float, steps: int) -> Shares:
    """Return the shares where each step multiplies them by a factor.

    Args:
        size: the number of learners, N.
        factor: the factor; 1/3 - 2/3 / (N - 1) on a randomized ring, and 1/2 - 1/2 /
            (N - 1) where random pairs cover all learners.
        steps: the number of shares.
    """
    return (1 - 1 / size) * factor ** np.arange(steps, dtype=np.float64)


def least_of_pairs(size: int, steps: int) -> Shares:
    """Return what no method undercuts that exchanges once a step and keeps the mean.

    After a exchanges, at most 2^a learners know of a noise. Their parts of it sum to
    the whole, so the sum of their squares is at least 1 / 2^a.
    """
    return np.maximum(0.5 ** np.arange(steps, dtype=np.float64) - 1 / size, 0)


def pair_matrix(size: int, pairs: Iterable[tuple[int, int]]) -> Matrix:
    """Return the matrix (N, N) that averages each of some pairs of learners."""
    matrix = np.eye(size)
    for pair in pairs:
        matrix[np.ix_(pair, pair)] = 0.5
    return matrix


def alternating_pairs(size: int) -> list[Matrix]:
    """Return the two rounds in which a ring of an even number averages its pairs."""
    edges = [(place, (place + 1) % size) for place in range(size)]
    return [pair_matrix(size, islice(edges, first, None, 2)) for first in (0, 1)]
