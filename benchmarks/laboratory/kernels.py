"""The passes of the laboratory over the parameters of many replicas, compiled by Numba.

Each reads and writes an element once, where a chain of tensor operations would read and
write it a dozen times; 64 models do not fit in the processor's cache, so that the time
of such a chain is that of its memory. The replicas to work on are named by their rows,
and stay where they are.

Matrices are (replicas, P), and have one dtype. What is one number a replica is
(replicas,), float64, and is rounded to that dtype before it is used.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[Any]
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
def adam(
    rows: Numbers,
    g: Matrix,
    m: Matrix,
    v: Matrix,
    betas: tuple[float, float],
    root: Column,
    eps: Column,
) -> None:
    """Make an update of Adam; g_k becomes m / (root sqrt(v) + eps)."""
    of = m.dtype.type
    b2, new1, new2 = of(betas[1]), of(1 - betas[0]), of(1 - betas[1])
    for k, r in enumerate(rows):
        own, first, second = g[k], m[r], v[r]
        factor, least = of(root[k]), of(eps[k])
        for i in range(len(own)):
            second[i] = b2 * second[i] + new2 * own[i] * own[i]
            first[i] += new1 * (own[i] - first[i])
            own[i] = first[i] / (factor * np.sqrt(second[i]) + least)


@compiled
def adam_of_all_batches(
    rows: Numbers,
    g: Matrix,
    m: Matrix,
    v: Matrix,
    s: Matrix,
    betas: tuple[float, float],
    root: Column,
    eps: Column,
    unbias: Column,
    fresh: Column,
    least: Column,
    ends: Numbers,
    removed: Matrix,
) -> None:
    """Make an update of Adam with the second moment of N batches; see `learners.Adam`.

    Args:
        rows: the replicas (n,).
        g: their gradients (n, P), which become m / (root sqrt(vN) + eps).
        m: the first moments.
        v: the second moments.
        s: the noise.
        betas: b1 and b2.
        root: the factor of sqrt(vN).
        eps: what is added to that.
        unbias: 1 / (1 - b1^(t-1)).
        fresh: the weight of a new deviation's square in s.
        least: the share of v that vN has at least.
        ends: where each parameter tensor ends in a model (parts,).
        removed: the factor of s in v - vN, for each replica and tensor (n, parts).
    """
    of = m.dtype.type
    b2, new1, new2 = of(betas[1]), of(1 - betas[0]), of(1 - betas[1])
    for k, r in enumerate(rows):
        factor, small, u = of(root[k]), of(eps[k]), of(unbias[k])
        weight, share = of(fresh[k]), of(least[k])
        start = 0
        for part, end in enumerate(ends):
            own, first = g[k, start:end], m[r, start:end]
            second, noise = v[r, start:end], s[r, start:end]
            c = of(removed[k, part])
            for i in range(len(own)):
                second[i] = b2 * second[i] + new2 * own[i] * own[i]
                deviation = own[i] - u * first[i]
                noise[i] = b2 * noise[i] + weight * deviation * deviation
                vn = max(second[i] - c * noise[i], share * second[i])
                first[i] += new1 * (own[i] - first[i])
                own[i] = first[i] / (factor * np.sqrt(vn) + small)
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
