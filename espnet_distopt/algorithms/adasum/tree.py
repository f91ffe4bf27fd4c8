"""The arithmetic of Adasum: a tree of pairs, by Gram matrices.

    Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

Orthogonal vectors are added and parallel ones averaged. Of N vectors, adjacent pairs
are combined, then adjacent pairs of the results, and so on; an odd last one is carried
up. The rule is commutative but not associative: the order of learners belongs to it.

The result is sum_i c_i g_i, and the c depend on nothing but the Gram matrix G of the
vectors: partial results are rows of coefficients A and B, and a.b = A G B'. So learners
need one exchange, not one for each level of the tree. Each parameter tensor has its own
G and c. Dot products and sums are of float64, whatever the dtype of the vectors.

A vector is zero, and its coefficient 1, if |a|^2 is below `TINY` or below `CANCELLED`
of the sum of the absolute terms of A G A': what is left when two vectors cancel to
within 3e-6 of their length is rounding. Then (a, b) give a + b. Without that rule a
remainder, however small, would take away half of b's projection on it. Above it,
the relative error, beside a tree of the vectors themselves, is up to about 1e-15 times
the square of length / remainder.

A projection of another vector that differs by no more than `EQUAL` from a vector counts
as equal to it: so equal vectors give just that vector, though the entries of G are sums
in different orders.
"""

import math

import torch
from torch import Tensor

TINY = math.sqrt(torch.finfo(torch.float64).tiny)
CANCELLED = 1e-12
EQUAL = 16 * torch.finfo(torch.float64).eps


def coefficients(matrices: Tensor) -> Tensor:
    """Return c (L, N), the coefficients of N vectors, from `matrices` (L, N, N)."""
    tensors, size, _ = matrices.shape
    rows = torch.eye(size, dtype=matrices.dtype, device=matrices.device)
    rows = rows.expand(tensors, size, size)
    magnitudes = matrices.abs()
    while (count := rows.shape[1]) > 1:
        last = rows[:, count - count % 2 :]
        a, b = rows[:, 0 : count - 1 : 2], rows[:, 1:count:2]
        dot = (a @ matrices * b).sum(-1, keepdim=True)
        a = _rest(dot / _square(a, matrices, magnitudes)) * a
        b = _rest(dot / _square(b, matrices, magnitudes)) * b
        rows = torch.cat([a + b, last], dim=1)
    return rows[:, 0]


def _rest(projection: Tensor) -> Tensor:
    """Return what is left of a vector beside half the other's projection on it."""
    equal = (projection - 1).abs() <= EQUAL
    return 1 - projection.masked_fill(equal, 1) / 2


def _square(rows: Tensor, matrices: Tensor, magnitudes: Tensor) -> Tensor:
    """Return |.|^2 of partial results `rows` (L, n, N), infinite for zero vectors."""
    square = (rows @ matrices * rows).sum(-1, keepdim=True)
    terms = (rows.abs() @ magnitudes * rows.abs()).sum(-1, keepdim=True)
    zero = (square < TINY) | (square < CANCELLED * terms)
    return square.masked_fill(zero, math.inf)
