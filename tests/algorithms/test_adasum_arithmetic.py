"""Adasum's arithmetic beside a float64 tree; chunks of a block, each column once.

The vectors are AS1 to AS11, AS13 and AS14 of docs/algorithms/adasum.md.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from espnet_distopt.algorithms import adasum as algorithm
from espnet_distopt.algorithms.adasum import SHORT, Shard, coefficients, cut
from espnet_distopt.core.learner import Slot
from tests.algorithms.adasum_learners import (
    adasum,
    distance,
    same_bits,
    tree,
    tree_of_layers,
)

RANKS = [(1.0, 0.0), (1.0, 1.0), (0.0, 2.0), (-1.0, 1.0), (2.0, 1.0), (1.0, -1.0)]


def doubles(*rows: tuple[float, ...] | list[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_as1_identical_vectors_give_that_vector_exactly(
    size: int, dtype: torch.dtype
) -> None:
    vector = normal(0, 37, dtype=dtype)
    assert same_bits(adasum([vector] * size, [5, 1, 31]), vector)


def test_as2_orthogonal_vectors_are_added() -> None:
    vectors = list(torch.eye(6, dtype=torch.float64))
    assert adasum(vectors).tolist() == [1.0] * 6


@pytest.mark.parametrize(("a", "b"), [(1, 3), (-2, 7), (1e-6, 1e6), (5, -1e-3)])
def test_as3_collinear_vectors_are_averaged(a: float, b: float) -> None:
    vector = normal(1, 9)
    result = adasum([a * vector, b * vector])
    assert distance(result, (a + b) / 2 * vector) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 7, 100, 70_000])
def test_as3_opposite_vectors_cancel_exactly(length: int, dtype: torch.dtype) -> None:
    vector = normal(2, length, dtype=dtype)
    assert not adasum([vector, -vector]).any()
    other = normal(3, length, dtype=dtype)
    assert distance(adasum([vector, -vector, other, other]), other.double()) < 1e-15


def test_as4_zero_vectors_change_nothing() -> None:
    vector, zero = normal(4, 9), torch.zeros(9, dtype=torch.float64)
    for place in range(5):
        vectors = [vector if rank == place else zero for rank in range(5)]
        assert torch.equal(adasum(vectors, [4, 5]), vector)
    assert torch.equal(adasum([zero] * 5), zero)


def test_as5_a_pair_commutes_bit_for_bit() -> None:
    for seed in range(20):
        a, b = normal(seed, 2, 33)
        assert same_bits(adasum([a, b], [3, 30]), adasum([b, a], [3, 30]))


@pytest.mark.parametrize("factor", [-1.0, 0.25, 3.7, -1e9])
def test_as5_homogeneous_of_degree_1(factor: float) -> None:
    vectors = normal(5, 5, 12)
    scaled = adasum(list(factor * vectors))
    assert distance(scaled, factor * adasum(list(vectors))) < 1e-14


def test_as5_rotation_equivariant() -> None:
    vectors = normal(6, 6, 8)
    rotation = torch.linalg.qr(normal(7, 8, 8)).Q
    rotated = adasum(list(vectors @ rotation))
    assert distance(rotated, adasum(list(vectors)) @ rotation) < 1e-14


def test_as6_length_and_direction_of_20000_pairs() -> None:
    pairs = normal(8, 20_000, 2, 3) * 10 ** normal(9, 20_000, 2, 1)
    c = coefficients(pairs @ pairs.mT)
    r = (c.unsqueeze(2) * pairs).sum(1)
    a, b = pairs.unbind(1)
    length_a, length_b = a.norm(dim=1), b.norm(dim=1)
    cos = (a * b).sum(1) / (length_a * length_b)
    squares = length_a**2 + length_b**2
    expected = squares * (1 - 0.75 * cos**2) + cos**3 * length_a * length_b / 2
    assert ((r * r).sum(1) - expected).abs().div(squares).max() < 1e-12
    assert (expected <= squares * (1 + 1e-12)).all()
    along_a = length_a**2 * (1 - cos**2 / 2) + cos * length_a * length_b / 2
    assert ((r * a).sum(1) - along_a).abs().div(squares).max() < 1e-12
    assert (along_a < 0).any()
    assert ((r * (a + b)).sum(1) > 0).all()


def test_as6_examples() -> None:
    cos = -0.9
    a, b = doubles([1, 0], [10 * cos, 10 * (1 - cos**2) ** 0.5])
    assert float(adasum([a, b]) @ a) == pytest.approx(-3.905, abs=1e-12)
    result = adasum(doubles([1, 0], [0.5, 0.75**0.5]))
    assert result.tolist() == pytest.approx([1.125, 0.64951905], abs=1e-8)
    assert float(result @ result) == pytest.approx(1.6875, abs=1e-12)


def test_as7_a_pair() -> None:
    result = adasum(doubles([1, 2, 3], [4, -5, 6]))
    assert result.tolist() == pytest.approx([328 / 77, -267 / 77, 558 / 77], rel=1e-12)


ORDERS = {
    "AS8": ([0, 1, 2, 3], (37 / 68, 325 / 136), 1e-12),
    "AS8, first pair": ([0, 1], (1.25, 0.75), 1e-12),
    "AS8, second pair": ([2, 3], (-0.5, 2), 1e-12),
    "AS8, another order": ([0, 2, 1, 3], (0.6, 2.2), 1e-12),
    "AS9, three": ([0, 1, 2], (55 / 68, 287 / 136), 1e-12),
    "AS9, five": ([0, 1, 2, 3, 4], (1.69100608, 2.35008631), 1e-8),
    "AS9, six": ([0, 1, 2, 3, 4, 5], (2.67387581, 2.17233519), 1e-8),
}


@pytest.mark.parametrize("name", ORDERS)
def test_as8_as9_the_order_of_ranks_belongs_to_it(name: str) -> None:
    ranks, expected, tolerance = ORDERS[name]
    result = adasum(doubles(*(RANKS[rank] for rank in ranks)))
    assert result.tolist() == pytest.approx(expected, rel=tolerance)


def test_as10_each_tensor_has_its_own_coefficients() -> None:
    vectors = doubles([1, 0, 1, 1], [0, 1, 1, 1])
    assert adasum(vectors, [2, 2]).tolist() == [1, 1, 1, 1]
    whole = adasum(vectors, [4]).tolist()
    assert whole == pytest.approx([2 / 3, 2 / 3, 4 / 3, 4 / 3], rel=1e-12)


def test_as10_what_lies_beside_a_tensor_does_not_matter() -> None:
    vectors, others = normal(10, 5, 7), normal(11, 5, 60)
    alone = adasum(list(vectors))
    for before in (0, 1, 30, 60):
        mixed = torch.cat([others[:, :before], vectors, others[:, before:]], dim=1)
        result = adasum(list(mixed), [before, 7, 60 - before])[before : before + 7]
        assert distance(result, alone) < 1e-14


def test_as11_extreme_lengths() -> None:
    for scale in (
        torch.finfo(torch.float32).tiny,
        torch.finfo(torch.float32).max ** 0.5,
    ):
        a = torch.tensor([1.0, 2.0, -1.0]) * scale
        assert distance(adasum([a, 3 * a]), (2 * a).double()) < 1e-7
    below = torch.full((1,), 1e-80, dtype=torch.float64)
    assert adasum([below, below]).item() == 2e-80
    above = torch.full((1,), 1.5e-77, dtype=torch.float64)
    assert torch.equal(adasum([above] * 8), above)


PRECISION = {torch.float64: 5e-16, torch.float32: 6e-8, torch.float16: 4.9e-4}


@pytest.mark.parametrize("dtype", PRECISION)
def test_precision_is_that_of_one_rounding(dtype: torch.dtype) -> None:
    vectors = list(normal(12, 4, 500, dtype=dtype))
    error = distance(adasum(vectors), tree(vectors))
    assert error < PRECISION[dtype]


sizes_of_tensors = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(2, 17),
    sizes=sizes_of_tensors,
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_gram_matrices_give_what_the_tree_does(
    size: int, sizes: list[int], seed: int, dtype: torch.dtype
) -> None:
    """Any packing: tensors of one element, cut ones, shards of nothing but padding."""
    vectors = list(normal(seed, size, sum(sizes), dtype=dtype))
    remainders: list[float] = []
    expected = tree_of_layers(vectors, sizes, remainders)
    worst = min(remainders)
    assume(worst > 1e-3)  # see the test of near cancellation
    rounding = 6e-8 if dtype is torch.float32 else 0
    limit = 1e-12 + 1e-14 / worst**2 + rounding
    assert distance(adasum(vectors, sizes), expected) < limit


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.integers(1, 5),
    per_node=st.integers(1, 4),
    sizes=sizes_of_tensors,
    seed=st.integers(0, 10**6),
)
def test_as13_nodes_average_before_adasum(
    nodes: int, per_node: int, sizes: list[int], seed: int
) -> None:
    """With one node it is the mean; with learners alone on nodes, full Adasum."""
    vectors = normal(seed, nodes * per_node, sum(sizes))
    means = list(vectors.view(nodes, per_node, -1).mean(1))
    remainders = [1.0]
    expected = tree_of_layers(means, sizes, remainders)
    assume(min(remainders) > 1e-3)
    result = adasum(list(vectors), sizes, per_node=per_node)
    assert distance(result, expected) < 1e-12 + 1e-14 / min(remainders) ** 2
    if per_node == 1:
        assert torch.equal(result, adasum(list(vectors), sizes))


def cancelling(left: float) -> list[Tensor]:
    """Two vectors that cancel but for `left` of their length, and two more."""
    g, h, *more = normal(13, 4, 40)
    h = h * left * g.norm() / h.norm()
    return [g, h - g, *more]


@pytest.mark.parametrize(
    ("left", "limit"), [(2e-2, 1e-12), (2e-4, 1e-8), (2e-5, 1e-6), (4e-6, 1e-4)]
)
def test_near_cancellation_costs_digits(left: float, limit: float) -> None:
    vectors = cancelling(left)
    assert distance(adasum(vectors), tree(vectors)) < limit


@pytest.mark.parametrize("left", [1e-6, 1e-7, 1e-8, 1e-10, 1e-13])
def test_below_3e_6_what_is_left_counts_as_zero(left: float) -> None:
    vectors = cancelling(left)
    as_if = tree([torch.zeros_like(vectors[0]), *vectors[2:]])
    assert distance(adasum(vectors), as_if) < 10 * left + 1e-12


CPU = torch.device("cpu")
SIZES = [SHORT + 5, 3, 0, 1, 2 * SHORT, 40, 7]


def slots(sizes: Sequence[int]) -> list[Slot]:
    stops = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [Slot(a, b, torch.Size([b - a]), 0) for a, b in pairwise(stops)]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 3, 50, SHORT - 1, SHORT, 9999]), max_size=9),
    bounds=st.tuples(st.integers(0, 30_000), st.integers(0, 30_000)),
    size=st.sampled_from([1, 4, 64, 3000]),
)
def test_each_column_is_in_one_chunk_with_its_tensor(
    sizes: list[int], bounds: tuple[int, int], size: int
) -> None:
    start, stop = sorted(bounds)
    whose = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes).long())
    expected = whose[start:stop].tolist()
    found: list[int] = []
    for chunk in cut(slots(sizes), start, stop, size, CPU):
        assert chunk.start == len(found)
        found += chunk.tensors.repeat_interleave(chunk.lengths).tolist()
        assert chunk.stop == len(found)
        assert 8 * size * (chunk.stop - chunk.start) <= max(algorithm.CHUNK, 8 * size)
        if chunk.whose is not None:
            assert chunk.tensors.tolist() == [chunk.whose]
    assert found == expected


def test_chunks_go_with_the_elements_not_the_tensors() -> None:
    assert len(cut(slots([10] * 10_000), 0, 100_000, 4, CPU)) <= 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [2, 5])
def test_a_shard_that_arrives_in_pieces(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No column is seen before it is there; a second exchange begins anew."""
    monkeypatch.setattr(algorithm, "CHUNK", 8 * size * 1000)
    start, stop = 100, sum(SIZES) - 3
    chunks = cut(slots(SIZES), start, stop, size, CPU)
    shard = Shard(torch.empty(size, stop - start, dtype=dtype), chunks, len(SIZES))
    c = normal(9, len(SIZES), size)
    for seed in (1, 2):
        vectors = normal(seed, size, sum(SIZES), dtype=dtype)
        shard.block.fill_(torch.nan)
        shard.begin()
        result = torch.full((stop - start,), torch.nan, dtype=dtype)
        for there in range(0, stop - start + 700, 700):
            shard.block[:, :there] = vectors[:, start : start + there][
                :, : stop - start
            ]
            shard.see(min(there, stop - start))
        for there in range(700, stop - start + 700, 700):
            shard.combine(c, result, min(there, stop - start))
            assert result[:there].isfinite().all()
        for tensor, slot in enumerate(slots(SIZES)):
            first, last = max(slot.start, start), min(slot.stop, stop)
            rows = vectors[:, first:last].double()
            expected = rows @ rows.T
            assert torch.allclose(shard.matrices[tensor], expected, 1e-12, 1e-11)
            sums = (c[tensor].unsqueeze(1) * rows).sum(0)
            found = result[first - start : last - start].double()
            tolerance = 1e-12 if dtype is torch.float64 else 6e-8
            assert torch.allclose(found, sums, tolerance, 1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("size", "per_node"), [(2, 1), (5, 1), (4, 2)])
def test_adasum_of_long_and_short_tensors(
    size: int, per_node: int, dtype: torch.dtype
) -> None:
    vectors = normal(3, size, sum(SIZES), dtype=dtype)
    means = vectors.double().view(size // per_node, per_node, -1).mean(1)
    expected = tree_of_layers(list(means), SIZES)
    found = adasum(list(vectors), SIZES, per_node=per_node)
    rounding = {torch.float64: 1e-14, torch.float32: 1e-7, torch.float16: 1e-3}[dtype]
    assert distance(found, expected) < rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_long_vectors_that_cancel_leave_nothing(dtype: torch.dtype) -> None:
    a, b = normal(4, 2, 3 * SHORT, dtype=dtype)
    assert not adasum([a, -a]).any()
    assert not adasum([a, -a, b, -b]).any()
    assert torch.equal(adasum([a, -a, b, b]), b)
