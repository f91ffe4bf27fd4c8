"""Cuts utterances into chunks of equal length, and makes batches of chunks.

ESPnet's `ChunkIterFactory` does that, too. But what it does with its random numbers is
an error since numpy 2.4. And there the learners have unequal numbers of batches, for
which synchronous algorithms would wait in vain. Here the lengths of all utterances are
known beforehand, so that every learner knows how many batches each of them can make,
and all stop after the fewest.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory
from espnet2.iterators.sequence_iter_factory import RawSampler
from torch import Tensor

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.cutting import cutting_of

_Chunk = tuple[str, dict[str, Tensor]]
"""The id of an utterance, and a piece of each of its sequences."""
Batch = tuple[list[str], dict[str, Tensor]]


@dataclass(frozen=True)
class Shares:
    """Which utterances each learner reads in each epoch.

    Attributes:
        names: All utterances.
        size: The number of learners.
        per_epoch: The number of utterances that a learner reads in an epoch; None for
            its share of all of them.
    """

    names: Sequence[str]
    size: int
    per_epoch: int | None

    def of(self, epoch: int, seed: int, shuffle: bool) -> list[list[str]]:
        """Return the utterances of each learner in an epoch, a function of the seed.

        The epochs read a sequence of random orders of all utterances, one behind the
        other. Learner n takes every `size`-th utterance of an epoch, from the n-th.
        """
        total = len(self.names)
        count = total if self.per_epoch is None else self.per_epoch * self.size
        first = (epoch - 1) * count
        orders = {
            turn: self._order(turn, seed, shuffle)
            for turn in range(first // total, (first + count - 1) // total + 1)
        }
        read = [
            self.names[orders[place // total][place % total]]
            for place in range(first, first + count)
        ]
        return [read[rank :: self.size] for rank in range(self.size)]

    def _order(self, turn: int, seed: int, shuffle: bool) -> Sequence[int]:
        if not shuffle:
            return range(len(self.names))
        order = np.random.default_rng([seed, turn]).permutation(len(self.names))
        return order.tolist()  # type: ignore[no-any-return]


class FrameChunks(AbsIterFactory):
    """Batches of chunks of all sequences of the utterances, at the same places.

    In training the chunks of an utterance begin at random within the frames that are
    left over, and each batch is drawn from a cache of many utterances' chunks. Frames
    beside the chunks, utterances shorter than a chunk, and the batches that a learner
    could make beyond those of another are not used in this epoch.

    Args:
        stock: ESPnet's factory, whose data set and whose options are used.
        frames: Utterance -> its number of frames.
        per_epoch: The number of utterances that a learner reads in an epoch; None for
            its share of all of them.
        size: The number of learners.
        rank: The rank of this one.

    Raises:
        InputError: `chunk_length` is not a single number, or the utterances make no
            chunk for some learner.
    """

    def __init__(
        self,
        stock: ChunkIterFactory,
        frames: Mapping[str, int],
        per_epoch: int | None,
        size: int = 1,
        rank: int = 0,
    ) -> None:
        self._stock = stock
        self._frames = frames
        self._cutting = cutting_of(stock.chunk_lengths, stock.chunk_shift_ratio)
        length = self._cutting.length
        long_enough = [name for name in frames if self._cutting.count(frames[name])]
        if len(long_enough) < size:
            raise InputError(
                f"{len(long_enough)} utterances have a chunk of {length} frames, "
                f"for {size} learners: each needs one at least"
            )
        self._shares = Shares(long_enough, size, per_epoch)
        self._rank = rank

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> Iterator[Batch]:
        """Yield the batches of an epoch, a function of seed, epoch and rank.

        The last batch may be smaller.
        """
        stock = self._stock
        random = stock.shuffle if shuffle is None else shuffle
        shares = self._shares.of(epoch, stock.seed, random)
        rng = np.random.default_rng([stock.seed, epoch, self._rank]) if random else None
        left = min(ceil(self._chunks(share) / stock.batch_size) for share in shares)
        cache: list[_Chunk] = []
        for names, batch in self._load(shares[self._rank], epoch):
            cache += self._cut(names[0], batch, rng)
            while left and len(cache) > max(stock.num_cache_chunks, stock.batch_size):
                yield _batch(_take(cache, stock.batch_size, rng))
                left -= 1
        for _ in range(left):
            yield _batch(_take(cache, stock.batch_size, rng))

    def _chunks(self, names: Sequence[str]) -> int:
        return sum(self._cutting.count(self._frames[name]) for name in names)

    def _load(self, names: Sequence[str], epoch: int) -> Iterator[Batch]:
        """Return ESPnet's loader of single utterances, in this order."""
        loader = copy(self._stock.per_sample_iter_factory)
        loader.sampler = RawSampler([[name] for name in names])
        loader.num_iters_per_epoch = None
        return loader.build_iter(epoch, shuffle=False)  # type: ignore[no-any-return]

    def _cut(
        self, name: str, batch: dict[str, Tensor], rng: np.random.Generator | None
    ) -> list[_Chunk]:
        sequences = {
            key: value[0]
            for key, value in batch.items()
            if not key.endswith("_lengths")
        }
        found = {key: len(value) for key, value in sequences.items()}
        if set(found.values()) != {self._frames[name]}:
            raise InputError(
                f"{name}: {self._frames[name]} frames in the shape file, but {found}"
            )
        length = self._cutting.length
        return [
            (name, {key: value[at : at + length] for key, value in sequences.items()})
            for at in self._cutting.starts(self._frames[name], rng)
        ]


def _take(
    cache: list[_Chunk], size: int, rng: np.random.Generator | None
) -> list[_Chunk]:
    """Remove chunks from the cache and return them: random ones, or the first."""
    if rng is None:
        taken = cache[:size]
        del cache[:size]
        return taken
    taken = []
    for _ in range(min(size, len(cache))):
        at = int(rng.integers(len(cache)))
        cache[at], cache[-1] = cache[-1], cache[at]
        taken.append(cache.pop())
    return taken


def _batch(chunks: list[_Chunk]) -> Batch:
    names = [name for name, _ in chunks]
    tensors: dict[str, Tensor] = {}
    for key in chunks[0][1]:
        tensors[key] = torch.stack([pieces[key] for _, pieces in chunks])
        lengths = torch.full((len(chunks),), tensors[key].shape[1], dtype=torch.long)
        tensors[f"{key}_lengths"] = lengths
    return names, tensors
