"""Adasum's two passes over float32 vectors on a CPU, compiled by numba.

Both read the columns of all vectors from memory once, convert them in registers and
compute in float64. PyTorch needs a copy of a chunk in float64 for that, and reads and
writes the copy several times: for four vectors it takes 2.4 times as long.

A Gram matrix takes groups of four vectors, whose products with each other fit into the
registers. The products of float32 numbers are exact in float64; the compiler chooses
the order of their sum. A combination adds adjacent vectors first, as the tree does, and
rounds each product by itself. So a pair that cancels leaves nothing.
"""

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.core.compiled import compiled

Rows = NDArray[np.float32]
Numbers = NDArray[np.float64]

GROUP = 4
"""How many vectors the products are computed of at a time."""


def _of_pair(a: Rows, b: Rows) -> tuple[float, float, float]:
    """Return the products of two vectors: of (a, a), (a, b) and (b, b)."""
    aa = ab = bb = 0.0
    for k in range(a.shape[0]):
        p, q = np.float64(a[k]), np.float64(b[k])
        aa += p * p
        ab += p * q
        bb += q * q
    return aa, ab, bb


def _of_group(a: Rows, b: Rows, c: Rows, d: Rows) -> tuple[float, ...]:
    """Return the products of each two of four vectors: of (a, a), (a, b) and so on."""
    aa = ab = ac = ad = bb = bc = bd = cc = cd = dd = 0.0
    for k in range(a.shape[0]):
        p, q = np.float64(a[k]), np.float64(b[k])
        r, s = np.float64(c[k]), np.float64(d[k])
        aa += p * p
        ab += p * q
        ac += p * r
        ad += p * s
        bb += q * q
        bc += q * r
        bd += q * s
        cc += r * r
        cd += r * s
        dd += s * s
    return aa, ab, ac, ad, bb, bc, bd, cc, cd, dd


def _with_group(x: Rows, a: Rows, b: Rows, c: Rows, d: Rows) -> tuple[float, ...]:
    """Return the products of one vector with four others."""
    xa = xb = xc = xd = 0.0
    for k in range(x.shape[0]):
        p = np.float64(x[k])
        xa += p * np.float64(a[k])
        xb += p * np.float64(b[k])
        xc += p * np.float64(c[k])
        xd += p * np.float64(d[k])
    return xa, xb, xc, xd


_of_pair = compiled(_of_pair, "reassoc", "contract")
_of_group = compiled(_of_group, "reassoc", "contract")
_with_group = compiled(_with_group, "reassoc", "contract")


@compiled
def add_products(block: Rows, start: int, stop: int, matrix: Numbers) -> None:
    """Add the Gram matrix of the columns [start, stop) of a block to `matrix`.

    Args:
        block: the vectors (N, S), contiguous.
        start: the first column.
        stop: the column behind the last one.
        matrix: the Gram matrix (N, N), which is added to in place.
    """
    size = block.shape[0]
    if size == 2:
        aa, ab, bb = _of_pair(block[0, start:stop], block[1, start:stop])
        matrix[0, 0] += aa
        matrix[0, 1] += ab
        matrix[1, 0] += ab
        matrix[1, 1] += bb
        return
    for i in range(0, size, GROUP):
        # The last vector stands in for those that are missing in a group.
        a, b = block[i, start:stop], block[min(i + 1, size - 1), start:stop]
        c = block[min(i + 2, size - 1), start:stop]
        d = block[min(i + 3, size - 1), start:stop]
        number, found = 0, _of_group(a, b, c, d)
        for u in range(i, i + GROUP):
            for v in range(u, i + GROUP):
                if v < size:
                    matrix[u, v] += found[number]
                    matrix[v, u] = matrix[u, v]
                number += 1
        for u in range(i + GROUP, size):
            products = _with_group(block[u, start:stop], a, b, c, d)
            for v in range(GROUP):
                matrix[u, i + v] += products[v]
                matrix[i + v, u] = matrix[u, i + v]


@compiled
def combine(
    block: Rows, start: int, stop: int, c: Numbers, result: Rows, sums: Numbers
) -> None:
    """Write sum_i c_i block_i of the columns [start, stop) to `result`.

    Args:
        block: the vectors (N, S), contiguous.
        start: the first column.
        stop: the column behind the last one.
        c: the coefficients (N,).
        result: the combined vector (S,); it may be a row of the block.
        sums: memory for some sums (B,), which stay in the cache.
    """
    size = block.shape[0]
    for first in range(start, stop, sums.shape[0]):
        length = min(sums.shape[0], stop - first)
        part = sums[:length]
        part[:] = 0.0
        for i in range(0, size - 1, 2):
            a, b = (
                block[i, first : first + length],
                block[i + 1, first : first + length],
            )
            factor, other = c[i], c[i + 1]
            for k in range(length):
                part[k] += factor * np.float64(a[k]) + other * np.float64(b[k])
        if size % 2 == 1:
            a, factor = block[size - 1, first : first + length], c[size - 1]
            for k in range(length):
                part[k] += factor * np.float64(a[k])
        combined = result[first : first + length]
        for k in range(length):
            combined[k] = part[k]
