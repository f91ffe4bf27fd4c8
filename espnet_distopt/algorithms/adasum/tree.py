"""The arithmetic of Adasum: a tree of pairs, by Gram matrices.

    Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

Orthogonal vectors are added and parallel ones averaged. Of N vectors, adjacent pairs
are combined, then adjacent pairs of the results, and so on. If their number is odd, the
last one goes on to the next level as it is. The rule is commutative but not
associative, so the result depends on the order of the learners.

The result is sum_i c_i g_i, where the coefficients c depend only on the Gram matrix G
of the vectors: partial results are rows of coefficients A and B, and a.b = A G B'. So
learners communicate once, and not once for each level of the tree. Each parameter
tensor has its own G and c. Dot products and sums are float64, whatever the dtype of the
vectors.

A vector a counts as zero if |a|^2 is below `TINY`, or below `CANCELLED` times the sum
of the absolute terms of A G A': when two vectors cancel to within 3e-6 of their length,
only rounding is left. The pair (a, b) then gives a + b. Without that rule such a
remainder, however small, would take away half of b's projection on it. Above these
bounds the relative error, compared with a tree of the vectors themselves, is up to
about 1e-15 times the square of length / remainder.

If another vector's projection on a vector differs from that vector by no more than
`EQUAL`, relative to it, the two count as equal. So equal vectors give just that vector,
although the entries of G are summed in different orders.
"""

import math

import torch
from torch import Tensor

TINY = math.sqrt(torch.finfo(torch.float64).tiny)
"""A vector counts as zero if its squared length is below this."""

CANCELLED = 1e-12
"""A vector counts as zero if its terms cancel to below this share of their sum."""

EQUAL = 16 * torch.finfo(torch.float64).eps
"""Two vectors count as equal if one's projection on the other is this close to it."""


def coefficients(matrices: Tensor) -> Tensor:
    """Return the coefficients c (L, N) of N vectors, for each of L parameter tensors.

    Args:
        matrices: the Gram matrices (L, N, N), float64.
    """
    tensors, size, _ = matrices.shape
    rows = torch.eye(size, dtype=matrices.dtype, device=matrices.device)
    rows = rows.expand(tensors, size, size)
    magnitudes = matrices.abs()
    while (count := rows.shape[1]) > 1:
        last = rows[:, count - count % 2 :]
        a, b = rows[:, 0 : count - 1 : 2], rows[:, 1:count:2]
        dot = (a @ matrices * b).sum(-1, keepdim=True)
        a = _own_coefficient(dot / _square(a, matrices, magnitudes)) * a
        b = _own_coefficient(dot / _square(b, matrices, magnitudes)) * b
        rows = torch.cat([a + b, last], dim=1)
    return rows[:, 0]


def _own_coefficient(projection: Tensor) -> Tensor:
    """Return a vector's coefficient: 1 less half the other's projection on it.

    Args:
        projection: a.b / |a|^2, for each pair of vectors.
    """
    equal = (projection - 1).abs() <= EQUAL
    return 1 - projection.masked_fill(equal, 1) / 2


def _square(rows: Tensor, matrices: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the squared lengths (L, n, 1) of partial results; infinite for zeros.

    Args:
        rows: the coefficients (L, n, N) of the n partial results.
        matrices: the Gram matrices (L, N, N).
        magnitudes: the absolute values of their entries.
    """
    square = (rows @ matrices * rows).sum(-1, keepdim=True)
    terms = (rows.abs() @ magnitudes * rows.abs()).sum(-1, keepdim=True)
    zero = (square < TINY) | (square < CANCELLED * terms)
    return square.masked_fill(zero, math.inf)
