"""Chunks: where they lie, who reads which utterance, and equal numbers of batches."""

from typing import Any

import numpy as np
import pytest
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.hybrid.chunks import FrameChunks, Shares
from espnet_distopt.espnet.training.cutting import Cutting


class Utterances(dict[str, Any]):
    """ESPnet's data set: utterance -> its id and its sequences."""

    def __getitem__(self, name: str) -> Any:
        return name, super().__getitem__(name)


def collate(items: list[Any]) -> Any:
    import torch

    names = [name for name, _ in items]
    batch = {}
    for key in items[0][1]:
        batch[key] = torch.from_numpy(np.stack([data[key] for _, data in items]))
        batch[f"{key}_lengths"] = torch.tensor([len(data[key]) for _, data in items])
    return names, batch


def chunks(
    lengths: list[int], size: int = 1, rank: int = 0, per_epoch: int | None = None
) -> FrameChunks:
    """Return chunks of 5 frames in batches of 4; a frame tells utterance and place."""
    frames = {f"u{n}": length for n, length in enumerate(lengths)}
    data = Utterances()
    for number, (name, length) in enumerate(frames.items()):
        places = 100 * number + np.arange(length)
        data[name] = {"speech": places[:, None].astype(np.float32), "states": places}
    stock = ChunkIterFactory(
        dataset=data,
        batches=[[name] for name in frames],
        batch_size=4,
        chunk_length=5,
        chunk_shift_ratio=1.0,
        num_cache_chunks=8,
        shuffle=True,
        collate_fn=collate,
    )
    return FrameChunks(stock, frames, per_epoch, size, rank)


def test_features_and_labels_are_cut_at_the_same_places() -> None:
    read = [batch for _, batch in chunks([23, 31, 12]).build_iter(1)]
    assert [len(batch["states"]) for batch in read] == [4, 4, 4]
    starts = []
    for batch in read:
        assert batch["speech"][..., 0].long().equal(batch["states"].long())
        assert batch["states"].diff(dim=1).eq(1).all()
        assert batch["speech_lengths"].tolist() == [5] * 4
        starts += batch["states"][:, 0].tolist()
    # 4, 6 and 2 chunks, none twice, and each 5 frames behind the one before it
    assert [sum(s // 100 == n for s in starts) for n in range(3)] == [4, 6, 2]
    for number in range(3):
        own = sorted(start for start in starts if start // 100 == number)
        assert set(np.diff(own)) == {5}


def test_an_epoch_is_a_function_of_its_number() -> None:
    def places(epoch: int, shuffle: bool | None = None) -> list[int]:
        batches = chunks([23, 31, 12]).build_iter(epoch, shuffle)
        return [place for _, b in batches for place in b["states"][:, 0].tolist()]

    assert places(1) == places(1)
    assert places(1) != places(2)
    assert places(1, False) == places(2, False) == sorted(places(2, False))


@given(
    st.lists(st.integers(1, 60), min_size=6, max_size=20),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_learners_have_equally_many_batches_and_no_chunk_in_common(
    lengths: list[int], size: int, per_epoch: int | None
) -> None:
    lengths = [*lengths, 30, 30, 30]
    read = []
    for rank in range(size):
        each = list(chunks(lengths, size, rank, per_epoch).build_iter(2))
        read.append(each)
    assert len({len(each) for each in read}) == 1
    if per_epoch is None:
        names = [{n for names, _ in each for n in names} for each in read]
        assert sum(map(len, names)) == len(set().union(*names))


def test_short_epochs_read_all_utterances_in_turn() -> None:
    shares = Shares([f"u{n}" for n in range(10)], 2, 3)
    read = [shares.of(epoch, 0, True) for epoch in range(1, 6)]
    assert all(len(share) == 3 for epoch in read for share in epoch)
    every = [name for epoch in read for share in epoch for name in share]
    assert {every.count(name) for name in shares.names} == {3}


@given(st.integers(0, 200), st.integers(1, 30), st.integers(1, 30))
def test_chunks_stay_inside_of_the_utterance(
    frames: int, length: int, step: int
) -> None:
    cutting = Cutting(length, step)
    starts = cutting.starts(frames, np.random.default_rng(frames))
    assert len(starts) == cutting.count(frames)
    assert all(0 <= start <= frames - length for start in starts)
    # Nothing more would fit behind the last one.
    assert not cutting.count(frames) or frames - (len(starts) * step + length) < 0


def test_too_few_utterances_and_wrong_lengths() -> None:
    with pytest.raises(
        InputError, match="1 utterances have a chunk of 5 frames, for 2"
    ):
        chunks([3, 5, 4], size=2)
    wrong = chunks([10, 20])
    wrong._frames = {"u0": 10, "u1": 21}
    with pytest.raises(InputError, match="u1: 21 frames in the shape file"):
        list(wrong.build_iter(1))
