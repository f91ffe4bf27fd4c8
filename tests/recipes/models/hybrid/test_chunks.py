"""Reading chunks: whole batches, shares of learners, and each utterance read once."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.batches import Batch, without_first
from espnet_distopt.recipes.models.hybrid.chunks import (
    ChunkPlan,
    FrameChunks,
    OwnShare,
    Utterances,
    mix,
)
from espnet_distopt.recipes.models.hybrid.cutting import Cutting
from espnet_distopt.recipes.models.hybrid.held import HeldFrames, hold


class DataSet(dict[str, Any]):
    """ESPnet's data set: utterance -> its id and its sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.read.append(name)
        return name, super().__getitem__(name)


def collate(items: list[Any]) -> Any:
    names = [name for name, _ in items]
    batch = {}
    for key in items[0][1]:
        batch[key] = torch.from_numpy(np.stack([data[key] for _, data in items]))
        batch[f"{key}_lengths"] = torch.tensor([len(data[key]) for _, data in items])
    return names, batch


class Chunks:
    """Chunks of 5 frames in batches of 4; a frame tells utterance and place."""

    def __init__(
        self,
        lengths: list[int],
        learners: int = 1,
        per_epoch: int | None = None,
        held: bool = False,
    ) -> None:
        self.frames = {f"u{n}": length for n, length in enumerate(lengths)}
        self.data = DataSet()
        for number, (name, length) in enumerate(self.frames.items()):
            places = 100 * number + np.arange(length)
            speech = places[:, None].astype(np.float32)
            self.data[name] = {"speech": speech, "states": places}
        stock = ChunkIterFactory(
            dataset=self.data,
            batches=[[name] for name in self.frames],
            batch_size=4,
            chunk_length=5,
            chunk_shift_ratio=1.0,
            num_cache_chunks=8,
            shuffle=True,
            collate_fn=collate,
        )
        self.factory = FrameChunks(
            stock, self.frames, per_epoch, learners, holding=holding if held else None
        )


def holding(frames: Mapping[str, int], length: int) -> HeldFrames:
    return HeldFrames(frames, length, torch.device("cpu"))


def starts(batches: Iterable[Batch]) -> list[int]:
    """Return utterance and place of the first frame of each chunk."""
    return [place for _, batch in batches for place in batch["states"][:, 0].tolist()]


def test_features_and_labels_are_cut_at_the_same_places() -> None:
    read = list(Chunks([23, 31, 12]).factory.build_iter(1).share(0, 1))
    assert [len(batch["states"]) for _, batch in read] == [4, 4, 4]
    for names, batch in read:
        assert batch["speech"][..., 0].long().equal(batch["states"].long())
        assert batch["states"].diff(dim=1).eq(1).all()
        assert batch["speech_lengths"].tolist() == [5] * 4
        assert names == [f"u{place // 100}" for place in batch["states"][:, 0].tolist()]
    # 4, 6 and 2 chunks, none twice, and each 5 frames behind the one before it
    assert [sum(s // 100 == n for s in starts(read)) for n in range(3)] == [4, 6, 2]
    for number in range(3):
        own = sorted(start for start in starts(read) if start // 100 == number)
        assert set(np.diff(own)) == {5}


def test_an_epoch_is_a_function_of_its_number() -> None:
    def places(epoch: int, shuffle: bool | None = None) -> list[int]:
        return starts(
            Chunks([23, 31, 12]).factory.build_iter(epoch, shuffle).share(0, 1)
        )

    assert places(1) == places(1)
    assert places(1) != places(2)
    assert places(1, False) == places(2, False) == sorted(places(2, False))


LENGTHS = [23, 31, 3, 12, 44, 17, 25, 38]
"""One utterance is shorter than a chunk; the others have 35 chunks."""


def test_any_learner_loads_any_piece_and_all_pieces_are_the_epoch() -> None:
    epoch = Chunks(LENGTHS, 3).factory.build_iter(1)
    owned = [
        list(OwnShare(Chunks(LENGTHS, 3).factory, r, 3).build_iter(1)) for r in range(3)
    ]
    assert [len(share) for share in owned] == [len(epoch)] * 3
    pieces = [(batch, rank) for batch in range(len(epoch)) for rank in range(3)]
    np.random.default_rng(0).shuffle(pieces)
    first, second = list(epoch.load(pieces[:7])), list(epoch.load(pieces[7:]))
    for (batch, rank), (names, loaded) in zip(pieces, first + second, strict=True):
        expected_names, expected = owned[rank][batch]
        assert names == expected_names
        assert loaded["states"].equal(expected["states"])
    every = starts([*first, *second])
    assert len(every) == len(set(every)) == 35
    # Others divide the same epoch if a learner has died.
    fewer = [starts(epoch.share(place, 2)) for place in (0, 1)]
    assert sorted(fewer[0] + fewer[1]) == sorted(every)


@pytest.mark.parametrize("per_epoch", [None, 3, 11])
def test_chunks_from_memory_are_those_of_the_loader(per_epoch: int | None) -> None:
    stock, ours = (Chunks(LENGTHS, 2, per_epoch, held=held) for held in (False, True))
    for epoch in (1, 2, 3):
        one, other = (each.factory.build_iter(epoch) for each in (stock, ours))
        pieces = [(batch, rank) for batch in range(len(one)) for rank in (1, 0)]
        for some in (pieces[:3], pieces[3:]):
            for (names, batch), (expected_names, expected) in zip(
                other.load(some), one.load(some), strict=True
            ):
                assert names == expected_names
                assert batch.keys() == expected.keys()
                for key, tensor in batch.items():
                    assert tensor.dtype == expected[key].dtype
                    assert tensor.equal(expected[key])
    # However often an epoch needs it, an utterance is read once.
    assert sorted(ours.data.read) == [f"u{n}" for n in (0, 1, 3, 4, 5, 6, 7)]


def test_reading_into_memory_draws_no_random_number() -> None:
    state = torch.get_rng_state()
    assert list(Chunks(LENGTHS, held=True).factory.build_iter(1).share(0, 1))
    assert torch.get_rng_state().equal(state)


def test_frames_are_held_where_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    frames = {"one": 2**20, "two": 2**20}
    sample = {"speech": np.zeros((3, 120), np.float16), "states": np.zeros(3, np.int64)}
    gib = 2**21 * 248 / 2**30
    with caplog.at_level(logging.INFO):
        assert (
            hold(frames, lambda: sample, 5, 1.01 * gib, torch.device("cpu")) is not None
        )
        assert "the frames of 2 utterances, 0.48 GiB, are read once" in caplog.text
        assert hold(frames, lambda: sample, 5, 0.99 * gib, torch.device("cpu")) is None
        assert "frames_in_memory allows 0.48 GiB" in caplog.text
    assert hold(frames, lambda: sample, 5, None, torch.device("cpu")) is None


def test_an_utterance_is_read_once_and_only_if_it_is_needed() -> None:
    chunks = Chunks(LENGTHS)
    share = chunks.factory.build_iter(1).share(0, 1)
    whole = list(share)
    assert sorted(chunks.data.read) == [f"u{n}" for n in (0, 1, 3, 4, 5, 6, 7)]
    chunks.data.read.clear()
    last = list(without_first(share, len(whole) - 1))
    assert starts(last) == starts(whole[-1:])
    assert set(chunks.data.read) == {name for names, _ in last for name in names}
    chunks.data.read.clear()
    next(iter(share))
    assert len(chunks.data.read) <= 4  # one for each chunk of the first batch


def test_too_few_utterances_and_wrong_lengths() -> None:
    with pytest.raises(InputError, match="1 chunks of 5 frames for 2 learners"):
        Chunks([3, 5, 4], 2)
    wrong = Chunks([10, 20])
    wrong.data["u1"] = {key: value[:-1] for key, value in wrong.data["u0"][1].items()}
    with pytest.raises(InputError, match="u1: 20 frames in the shape file, but"):
        list(wrong.factory.build_iter(1).share(0, 1))


# The plan of an epoch: every chunk in one batch, equal shares, an order that mixes.


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
        first, end = [0, *plan.ends][utterance : utterance + 2]
        assert set(plan.utterances(np.arange(first, end))) == {utterance}
        starts = plan.starts(np.arange(first, end))
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
