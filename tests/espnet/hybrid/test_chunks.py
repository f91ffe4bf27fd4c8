"""Reading chunks: whole batches, shares of learners, and each utterance read once."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.hybrid.chunks import FrameChunks, OwnShare
from espnet_distopt.espnet.training.loading import Batch, without_first


class Utterances(dict[str, Any]):
    """ESPnet's data set: utterance -> its id and its sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.read.append(name)
        return name, super().__getitem__(name)


def collate(items: list[Any]) -> Any:
    import torch

    names = [name for name, _ in items]
    batch = {}
    for key in items[0][1]:
        batch[key] = torch.from_numpy(np.stack([data[key] for _, data in items]))
        batch[f"{key}_lengths"] = torch.tensor([len(data[key]) for _, data in items])
    return names, batch


class Chunks:
    """Chunks of 5 frames in batches of 4; a frame tells utterance and place."""

    def __init__(
        self, lengths: list[int], learners: int = 1, per_epoch: int | None = None
    ) -> None:
        self.frames = {f"u{n}": length for n, length in enumerate(lengths)}
        self.data = Utterances()
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
        self.factory = FrameChunks(stock, self.frames, per_epoch, learners)


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
