"""The compiled passes, beside the same sums in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.algorithms.adasum.compiled_passes import (
    Numbers,
    Rows,
    add_products,
    combine,
)


def vectors(size: int, columns: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((size, columns)).astype(np.float32)


def combined(block: Rows, c: Numbers, start: int = 0, sums: int = 7) -> Rows:
    result = np.full(block.shape[1], np.nan, np.float32)
    combine(block, start, block.shape[1], c, result, np.empty(sums))
    return result


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 13),
    bounds=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    seed=st.integers(0, 99),
)
def test_products_of_the_given_columns_are_added(
    size: int, bounds: tuple[int, int], seed: int
) -> None:
    start, stop = sorted(bounds)
    block = vectors(size, 300, seed)
    matrix = np.full((size, size), 0.5)
    add_products(block, start, stop, matrix)
    rows = block[:, start:stop].astype(np.float64)
    np.testing.assert_allclose(matrix, 0.5 + rows @ rows.T, rtol=1e-13, atol=1e-13)
    assert np.array_equal(matrix, matrix.T)


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_products_that_float32_cannot_hold(size: int) -> None:
    for length in (1e30, 1e-30):
        block = np.full((size, 8), length, np.float32)
        matrix = np.zeros((size, size))
        add_products(block, 0, 8, matrix)
        expected = 8 * float(np.float32(length)) ** 2
        np.testing.assert_allclose(matrix, expected, rtol=1e-15)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 13),
    start=st.integers(0, 30),
    sums=st.integers(1, 40),
    in_place=st.booleans(),
)
def test_a_combination_is_rounded_once(
    size: int, start: int, sums: int, in_place: bool
) -> None:
    """The result may take the place of a vector, whose columns are read before."""
    block, c = vectors(size, 50), np.random.default_rng(1).standard_normal(size)
    exact = [
        math.fsum(float(f) * float(x) for f, x in zip(c, column, strict=True))
        for column in block.T
    ]
    before = block[0].copy()
    result = block[0] if in_place else np.full(50, np.nan, np.float32)
    combine(block, start, 50, c, result, np.empty(sums))
    np.testing.assert_allclose(result[start:], exact[start:], rtol=6e-8, atol=1e-12)
    if in_place:
        assert np.array_equal(result[:start], before[:start])
    else:
        assert np.isnan(result[:start]).all()


def test_a_pair_has_the_same_bits_in_either_order() -> None:
    block = vectors(2, 1000)
    c = np.array([0.3, 0.7])
    turned = np.ascontiguousarray(block[::-1])
    assert np.array_equal(combined(block, c), combined(turned, c[::-1].copy()))
    one, other = np.zeros((2, 2)), np.zeros((2, 2))
    add_products(block, 0, 1000, one)
    add_products(turned, 0, 1000, other)
    assert np.array_equal(one, other[::-1, ::-1])


@pytest.mark.parametrize("size", [2, 4, 6])
def test_adjacent_vectors_that_cancel_leave_nothing(size: int) -> None:
    """A fused multiply-add would leave what rounding takes from one product."""
    block = vectors(size, 1000)
    block[1::2] = -block[::2]
    c = np.repeat(np.random.default_rng(1).random(size // 2), 2)
    assert not combined(block, c).any()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_equal_vectors_are_averaged_without_rounding(size: int) -> None:
    block = np.repeat(vectors(1, 1000), size, axis=0)
    assert np.array_equal(combined(block, np.full(size, 1 / size)), block[0])
