"""Chunks of a block: each column once, Gram matrices and sums beside float64."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espnet_distopt.algorithms.adasum import chunks as adasum_chunks
from espnet_distopt.algorithms.adasum.chunks import SHORT, Shard, cut
from espnet_distopt.core.learner import Slot
from tests.algorithms.adasum.learners import adasum, distance, tree_of_layers

CPU = torch.device("cpu")
SIZES = [SHORT + 5, 3, 0, 1, 2 * SHORT, 40, 7]


def slots(sizes: Sequence[int]) -> list[Slot]:
    stops = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [Slot(a, b, torch.Size([b - a]), 0) for a, b in pairwise(stops)]


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


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
        assert 8 * size * (chunk.stop - chunk.start) <= max(
            adasum_chunks.CHUNK, 8 * size
        )
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
    monkeypatch.setattr(adasum_chunks, "CHUNK", 8 * size * 1000)
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
