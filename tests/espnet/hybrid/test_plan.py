"""The plan of an epoch: every chunk in one batch, equal shares, an order that mixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.espnet.hybrid.plan import ChunkPlan, Utterances, mix
from espnet_distopt.espnet.training.cutting import Cutting


def plan_of(
    lengths: list[int], batch_size: int = 4, window: int = 8, seed: int | None = 0
) -> ChunkPlan:
    """Return the plan of utterances of these lengths, with chunks of 5 frames."""
    return ChunkPlan(
        names=[f"u{n}" for n in range(len(lengths))],
        frames=np.array(lengths),
        cutting=Cutting(5, 5),
        batch_size=batch_size,
        window=window,
        seed=None if seed is None else (seed, 1),
    )


@given(
    st.lists(st.integers(5, 60), min_size=6, max_size=20),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_every_chunk_is_in_one_batch_of_one_learner(
    lengths: list[int], learners: int, batch_size: int, window: int
) -> None:
    plan = plan_of(lengths, batch_size, window)
    shares = [plan.share(rank, learners) for rank in range(learners)]
    assert plan.chunks == sum(length // 5 for length in lengths)
    every = np.concatenate([batch for share in shares for batch in share])
    assert sorted(every.tolist()) == list(range(plan.chunks))
    assert {len(share) for share in shares} == {plan.batches(learners)}
    sizes = {len(batch) for share in shares for batch in share}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    whole = [sum(map(len, batch)) for batch in zip(*shares, strict=True)]
    assert max(whole) < max(batch_size, learners) + learners


def test_batches_are_as_large_as_they_may_be() -> None:
    plan = plan_of([500, 320, 180], batch_size=64)
    shares = [plan.share(rank, 4) for rank in range(4)]
    sizes = [sum(len(share[n]) for share in shares) for n in range(4)]
    assert sizes == [52, 52, 48, 48]  # 200 chunks are more than 3 batches of 64
    # A learner must have a chunk in each batch, though 3 divided by 2 is no number.
    assert [len(batch) for batch in plan_of([15], 1).share(1, 2)] == [2]


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 9))
def test_an_order_that_mixes_never_reaches_beyond_its_window(
    count: int, window: int, seed: int
) -> None:
    items = mix(np.arange(count), window, np.random.default_rng(seed)).tolist()
    assert sorted(items) == list(range(count))
    assert all(item < place + window for place, item in enumerate(items))


def test_the_first_item_is_any_of_the_window() -> None:
    rng = np.random.default_rng(0)
    first = [int(mix(np.arange(9), 4, rng)[0]) for _ in range(4000)]
    assert np.bincount(first).tolist() == pytest.approx([1000] * 4, abs=120)


@given(st.lists(st.integers(5, 60), min_size=1, max_size=9), st.integers(0, 99))
def test_chunks_lie_inside_of_their_utterances(lengths: list[int], seed: int) -> None:
    plan = plan_of(lengths, seed=seed)
    for utterance, length in enumerate(lengths):
        first, end = plan.chunks_of(utterance)
        assert set(plan.utterances(np.arange(first, end))) == {utterance}
        starts = plan.starts(utterance, np.arange(first, end))
        assert len(starts) == length // 5
        assert starts[0] >= 0
        assert starts[-1] + 5 <= length
        assert set(np.diff(starts)) <= {5}


def test_short_epochs_read_all_utterances_in_turn() -> None:
    utterances = Utterances([f"u{n}" for n in range(10)], np.full(10, 7), 6)
    read = [utterances.of(epoch, 0, True).tolist() for epoch in range(1, 6)]
    assert all(len(numbers) == 6 for numbers in read)
    every = [number for numbers in read for number in numbers]
    assert {every.count(number) for number in range(10)} == {3}
    assert sorted(every[:10]) == sorted(every[10:20]) == list(range(10))
    assert every[:10] != every[10:20] != list(range(10))
