"""The passes of the laboratory over the parameters of many replicas, compiled by Numba.

Each reads and writes an element once, where a chain of tensor operations would read and
write it a dozen times; 64 models do not fit in the processor's cache, so that the time
of such a chain is that of its memory. The replicas to work on are named by their rows,
and stay where they are.

Matrices are (replicas, P), and have one dtype. What is one number a replica is
(replicas,), and is rounded to that dtype before it meets an element of them.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[Any]
Vector = NDArray[Any]
Column = NDArray[np.float64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return tensors as arrays, which have the same memory."""
    return [each.numpy() for each in tensors]


compiled = numba.njit(cache=True, error_model="numpy")


@compiled
def add(rows: Numbers, x: Matrix, d: Matrix, scale: Column) -> None:
    """x_r <- x_r + scale d_k, for the k-th of the rows r.

    Args:
        rows: the replicas (n,).
        x: the matrix that is changed (R, P).
        d: a row for each of the replicas (n, P).
        scale: one number for each of them (n,).
    """
    of = x.dtype.type
    for k, r in enumerate(rows):
        its, own, factor = x[r], d[k], of(scale[k])
        for i in range(len(its)):
            its[i] += factor * own[i]


@compiled
def sgd(rows: Numbers, g: Matrix, m: Matrix, momentum: float) -> None:
    """m_r <- momentum m_r + g_k, which g_k becomes as well."""
    b = m.dtype.type(momentum)
    for k, r in enumerate(rows):
        own, its = g[k], m[r]
        for i in range(len(its)):
            own[i] = its[i] = b * its[i] + own[i]


@compiled
def clip(g: Matrix, most: float) -> None:
    """Shorten the rows of g to a norm."""
    of = g.dtype.type
    for k in range(len(g)):
        own = g[k]
        norm = np.linalg.norm(own)
        if norm > most:
            own *= of(most) / (norm + of(1e-6))


@compiled
def noise_share(b1: float, count: Any, when: Any, share: Any) -> Any:
    """Return q, the share of a batch's noise in the first moment.

    Args:
        b1: the decay of the first moment.
        count: the number of updates.
        when: the number of updates at the last average of first moments.
        share: q after it.
    """
    left = b1 ** (2 * (count - when))
    return left * share + (1 - b1) / (1 + b1) * (1 - left)


@compiled
def corrections(count: float, betas: tuple[float, float], eps: float) -> Any:
    """Return a and e: m / (a sqrt(v) + e) is Adam's update with unbiased moments.

    Args:
        count: the number of updates, with this one.
        betas: the decays of m and v.
        eps: what Adam adds to the root of an unbiased v.
    """
    unbias = 1 - betas[0] ** count
    return unbias / np.sqrt(1 - betas[1] ** count), unbias * eps


@compiled
def adam(
    rows: Numbers,
    g: Matrix,
    m: Matrix,
    v: Matrix,
    counts: Vector,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Make an update of Adam, which g_k becomes; see `learners.Adam`."""
    b1, b2 = betas
    of = m.dtype.type
    new1, old2, new2 = of(1 - b1), of(b2), of(1 - b2)
    for k, r in enumerate(rows):
        own, first, second = g[k], m[r], v[r]
        counts[r] += np.float32(1)
        a, e = corrections(counts[r], betas, eps)
        factor, small = of(a), of(e)
        for i in range(len(own)):
            second[i] = old2 * second[i] + new2 * own[i] * own[i]
            first[i] += new1 * (own[i] - first[i])
            own[i] = first[i] / (factor * np.sqrt(second[i]) + small)


@compiled
def adam_of_all_batches(
    rows: Numbers,
    g: Matrix,
    m: Matrix,
    v: Matrix,
    counts: Vector,
    betas: tuple[float, float],
    eps: float,
    s: Matrix,
    batches: Column,
    averaged: Matrix,
    shares: Matrix,
    ends: Numbers,
    columns: Numbers,
    places: Numbers,
    sampled: Matrix,
) -> None:
    """Make an update of Adam with the second moment of N batches.

    The arguments are the attributes of `learners.Adam`; g_k becomes the update.
    """
    b1, b2 = betas
    of = m.dtype.type
    new1, old2, new2 = of(1 - b1), of(b2), of(1 - b2)
    for k, r in enumerate(rows):
        for number, place in enumerate(places):
            sampled[r, number] = g[k, place]
        before = np.float64(counts[r])
        counts[r] += np.float32(1)
        a, e = corrections(counts[r], betas, eps)
        factor, small = of(a), of(e)
        known, one = before > 0, max(before, 1.0)
        biased = 1 / (1 - b1**one)
        q = noise_share(b1, one, averaged[0, r], averaged[1, r])
        u, weight = of(biased), of(known * (1 - b2) / (1 + biased**2 * q))
        others = known * (1 - 1 / batches[r])
        removed = others * (1 - b2 ** (one + 1)) / (1 - b2**one)
        share = of(1 - others)
        start = 0
        for end, column in zip(ends, columns):  # noqa: B905
            own, first = g[k, start:end], m[r, start:end]
            second, noise = v[r, start:end], s[r, start:end]
            c = of(removed * shares[r, column])
            for i in range(len(own)):
                second[i] = old2 * second[i] + new2 * own[i] * own[i]
                deviation = own[i] - u * first[i]
                noise[i] = old2 * noise[i] + weight * deviation * deviation
                vn = max(second[i] - c * noise[i], share * second[i])
                first[i] += new1 * (own[i] - first[i])
                own[i] = first[i] / (factor * np.sqrt(vn) + small)
            start = end


@compiled
def lengthen(rows: Numbers, x: Matrix, d: Matrix, ends: Numbers) -> None:
    """Make each tensor of d_k as long as that of x_r, unless one of them is zero.

    Args:
        rows: the replicas (n,).
        x: the replicas (R, P).
        d: a row for each of those named (n, P).
        ends: where each parameter tensor ends in a model (parts,).
    """
    for k, r in enumerate(rows):
        start = 0
        for end in ends:
            own = d[k, start:end]
            length, of_own = np.linalg.norm(x[r, start:end]), np.linalg.norm(own)
            if length > 0 and of_own > 0:
                own *= length / of_own
            start = end


@compiled
def renew(
    rows: Numbers,
    x: Matrix,
    copy: Matrix,
    behind: Matrix,
    is_behind: Flags,
    kept: Flags,
    d: Matrix,
    scale: Column,
) -> None:
    """End steps of AD-PSGD; see `methods.adpsgd`.

    Args:
        rows: the replicas (n,).
        x: the replicas (R, P).
        copy: what they show.
        behind: the updates that these do not have, where there are any.
        is_behind: whether there are any (R,).
        kept: whether a copy stays as it is (R,).
        d: the directions of the updates (n, P).
        scale: their factors (n,), which are not positive.
    """
    of = x.dtype.type
    for k, r in enumerate(rows):
        its, shown, late, own = x[r], copy[r], behind[r], d[k]
        factor = of(scale[k])
        if not (kept[r] or is_behind[r]):
            for i in range(len(its)):
                its[i] = shown[i] = shown[i] + factor * own[i]
            continue
        for i in range(len(its)):
            late[i] -= factor * own[i]
            its[i] = shown[i] - late[i]
        is_behind[r] = kept[r]
        if not kept[r]:
            shown[:] = its
            late[:] = 0


@compiled
def average(pairs: Numbers, x: Matrix) -> None:
    """Let both replicas of each pair (n, 2) become their mean, one after another."""
    half = x.dtype.type(0.5)
    for a, p in pairs:
        one, other = x[a], x[p]
        for i in range(len(one)):
            one[i] = other[i] = half * (one[i] + other[i])


@compiled
def ring_means(order: Numbers, x: Matrix, out: Matrix) -> None:
    """Write the means of each replica and its two neighbours on a ring.

    Args:
        order: the replicas in the order of the ring (N,).
        x: the replicas (N, P).
        out: where their means go (N, P).
    """
    three = x.dtype.type(3)
    size = len(order)
    for place, r in enumerate(order):
        before, its = x[order[place - 1]], x[r]
        after, mean = x[order[(place + 1) % size]], out[r]
        for i in range(len(its)):
            mean[i] = (before[i] + its[i] + after[i]) / three
