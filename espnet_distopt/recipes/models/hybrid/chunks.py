"""Batches of chunks of utterances, which are known before anything is read.

ESPnet's `ChunkIterFactory` cuts utterances, too. But what it does with its random
numbers is an error since numpy 2.4. And there the learners have unequal numbers of
batches, for which synchronous algorithms would wait in vain. Here a `ChunkPlan` says
which chunks are in which batch, and all chunks are in one.

The utterances of an epoch, one behind the other, are a row of chunks. Each of S
learners has a share of it, as long as any other's but for one chunk. It takes the
chunks of its share in a random order that never reaches far ahead, so that it can read
the utterances one after the other. All this follows from the lengths of the utterances,
the seed, and the epoch's number, so that a learner knows the batches of every other
one, too.

An example: 3 utterances of 4, 6 and 2 chunks, 2 learners, and batches of 6 chunks:

    the row                 0 1 2 3 | 4 5 6 7 8 9 | 10 11
    shares                  learner 0: 0 to 5; learner 1: 6 to 11
    a window of 3 chunks    learner 0: 2 0 3 | 1 5 4; learner 1: 7 6 9 | 8 11 10

Each of the two batches has three chunks of each learner.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.batches import (
    Batch,
    DealingIterFactory,
    EpochBatches,
)
from espnet_distopt.recipes.models.hybrid.cutting import Cutting, batches_of, cutting_of
from espnet_distopt.recipes.models.hybrid.held import HeldFrames, PassingFrames

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Utterances:
    """All utterances that have a chunk, and how an epoch reads them.

    Attributes:
        frames: The number of frames of each, shape (N,).
        per_epoch: The number of utterances that an epoch reads; None for all.
    """

    names: Sequence[str]
    frames: Numbers
    per_epoch: int | None

    def of(self, epoch: int, seed: int, shuffle: bool) -> Numbers:
        """Return the numbers of the utterances of an epoch, from 1, in their order.

        The epochs read a sequence of random orders of all utterances, one behind the
        other.
        """
        total = len(self.names)
        count = total if self.per_epoch is None else self.per_epoch
        first = (epoch - 1) * count
        turns = range(first // total, (first + count - 1) // total + 1)
        orders = [self._order(turn, seed, shuffle) for turn in turns]
        skipped = first - turns.start * total
        return np.concatenate(orders)[skipped : skipped + count]

    def _order(self, turn: int, seed: int, shuffle: bool) -> Numbers:
        if not shuffle:
            return np.arange(len(self.names))
        rng = np.random.default_rng([seed, turn])
        return rng.permutation(len(self.names))


@dataclass(frozen=True)
class ChunkPlan:
    """The batches of an epoch.

    A chunk is named by its number in the row of all chunks of the epoch, from 0.

    Attributes:
        names: The utterances of the epoch, in their order; one may be there twice.
        frames: The number of frames of each, shape (U,).
        cutting: How an utterance becomes chunks.
        batch_size: The number of chunks of a batch, for all learners together.
        window: How many chunks a learner may hold to draw from.
        seed: The numbers from which random ones are drawn; None for chunks in their
            order that begin with the utterance.
    """

    names: Sequence[str]
    frames: Numbers
    cutting: Cutting
    batch_size: int
    window: int
    seed: tuple[int, ...] | None

    @cached_property
    def ends(self) -> Numbers:
        """How many chunks there are up to the end of each utterance, shape (U,)."""
        return np.cumsum(self.cutting.counts(self.frames))

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return int(self.ends[-1])

    @cached_property
    def _starts(self) -> Numbers:
        """The first frame of the first chunk of each utterance, shape (U,)."""
        if self.seed is None:
            return np.zeros(len(self.frames), np.int64)
        return self.cutting.first(self.frames, np.random.default_rng(self.seed))

    def batches(self, learners: int) -> int:
        """Return the number of batches: each has a chunk of each learner at least."""
        return batches_of(self.chunks, self.batch_size, learners)

    def utterances(self, chunks: Numbers) -> Numbers:
        """Return the place in `names` of each chunk's utterance."""
        return np.searchsorted(self.ends, chunks, side="right")

    def starts(self, chunks: Numbers) -> Numbers:
        """Return the first frame of each chunk in its utterance."""
        utterances = self.utterances(chunks)
        first = self.ends[utterances] - self.cutting.counts(self.frames[utterances])
        starts: Numbers = self._starts[utterances]
        starts = starts + self.cutting.step * (chunks - first)
        return starts

    def share(self, rank: int, learners: int) -> list[Numbers]:
        """Return the chunks of a learner, batch by batch.

        Cost: some microseconds for each chunk of the share; nothing is read.
        """
        first, end = (self.chunks * (rank + n) // learners for n in (0, 1))
        order = np.arange(first, end)
        if self.seed is not None:
            rng = np.random.default_rng([*self.seed, rank])
            order = mix(order, self.window // learners, rng)
        count = self.batches(learners)
        return np.array_split(order, count)


def mix(items: Numbers, window: int, rng: np.random.Generator) -> Numbers:
    """Return items in a random order that never reaches far ahead.

    Each is drawn from `window` items: those that come next, and those which were not
    drawn before. With a window as large as `items`, every order is equally likely.
    """
    mixed, count = items.tolist(), len(items)
    left = np.minimum(max(1, window), count - np.arange(count))
    places = np.arange(count) + (rng.random(count) * left).astype(np.int64)
    for place, other in enumerate(places.tolist()):
        mixed[place], mixed[other] = mixed[other], mixed[place]
    return np.asarray(mixed, np.int64)


class FrameChunks(DealingIterFactory):
    """Batches of chunks of all sequences of the utterances, at the same places.

    In training the chunks of an utterance begin at random within the frames that are
    left over. Frames beside the chunks, and utterances shorter than a chunk, are not
    used in this epoch; every chunk is used once.

    Args:
        stock: ESPnet's factory for a single learner, whose data set and whose options
            are used.
        frames: Utterance -> its number of frames.
        per_epoch: The number of utterances that all learners together read in an epoch;
            None for all.
        most: The number of utterances that are used at all, the first ones that have a
            chunk; None for all.
        holding: Returns room in memory for the utterances that are used, for their
            numbers of frames and the number of those of a chunk; or None.

    Raises:
        InputError: `chunk_length` is not a single number, or the utterances have fewer
            chunks than there are learners.
    """

    def __init__(
        self,
        stock: ChunkIterFactory,
        frames: Mapping[str, int],
        per_epoch: int | None,
        learners: int = 1,
        most: int | None = None,
        holding: Callable[[Mapping[str, int], int], HeldFrames | None] | None = None,
    ) -> None:
        self._stock = stock
        self._cutting = cutting_of(stock.chunk_lengths, stock.chunk_shift_ratio)
        lengths = np.fromiter(frames.values(), np.int64, len(frames))
        has_chunk = self._cutting.counts(lengths) > 0
        names = [name for name, has in zip(frames, has_chunk, strict=True) if has]
        used = lengths[has_chunk][:most]
        self._utterances = Utterances(names[:most], used, per_epoch)
        self._learners = learners
        found = int(self._cutting.counts(lengths).sum())
        if found < learners:
            raise InputError(
                f"{found} chunks of {self._cutting.length} frames for {learners} "
                "learners: each needs one at least"
            )
        self._held: HeldFrames | None = None
        if holding is not None:
            used_frames = dict(zip(names, used.tolist(), strict=False))
            self._held = holding(used_frames, self._cutting.length)

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> "EpochChunks":
        """Return the batches of an epoch, a function of its number and the seed."""
        stock, every = self._stock, self._utterances
        random = stock.shuffle if shuffle is None else shuffle
        numbers = every.of(epoch, stock.seed, random)
        plan = ChunkPlan(
            names=[every.names[number] for number in numbers],
            frames=every.frames[numbers],
            cutting=self._cutting,
            batch_size=stock.batch_size,
            window=stock.num_cache_chunks,
            seed=(stock.seed, epoch) if random else None,
        )
        loader = stock.per_sample_iter_factory.build_iter(epoch, shuffle=False)
        return EpochChunks(plan, loader, self._learners, self._held)


class OwnShare(AbsIterFactory):
    """The batches of one learner, which no other ever takes."""

    def __init__(self, whole: FrameChunks, rank: int, learners: int) -> None:
        self._whole, self._rank, self._learners = whole, rank, learners

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> "LoadedShare":
        """Return this learner's batches of an epoch."""
        return self._whole.build_iter(epoch, shuffle).share(self._rank, self._learners)


class EpochChunks(EpochBatches):
    """The batches of an epoch, which the learners divide themselves.

    Args:
        loader: ESPnet's data loader, whose batches are single utterances.
        held: What it reads is held there, if not None, and not read again.
    """

    def __init__(
        self,
        plan: ChunkPlan,
        loader: DataLoader[Any],
        learners: int = 1,
        held: HeldFrames | None = None,
    ) -> None:
        self._plan, self._learners, self._held = plan, learners, held
        self._chosen: list[Sequence[str]] = []
        self._loader = with_batches(loader, self._chosen, again=True)
        if held is not None:
            # A resumed run opens it when others have all in memory. So it draws no
            # number from the generator that their steps may draw from.
            self._loader.generator = torch.Generator().manual_seed(0)
        # A learner reads its own share, and takes from few others at the end.
        self._share = lru_cache(maxsize=4)(plan.share)

    def __len__(self) -> int:
        return self._plan.batches(self._learners)

    def load(self, pieces: Sequence[tuple[int, int]]) -> Iterator[Batch]:
        """Load the learners' pieces of batches, in the order of the argument.

        Each utterance that has a chunk in one of them is read once, when the first such
        piece comes, and its other chunks are held until theirs come.
        """
        return self.load_chunks([self._share(r, self._learners)[b] for b, r in pieces])

    def share(self, place: int, learners: int) -> "LoadedShare":
        """Return the batches of one of some learners that divide the epoch alone."""
        return LoadedShare(self, self._plan.share(place, learners))

    def load_chunks(self, batches: Sequence[Numbers]) -> Iterator[Batch]:
        """Load batches, for each the numbers of its chunks in the plan.

        The data loader is opened at once, since it draws a random number then, which a
        resumed run draws before it restores its generators.
        """
        if not batches:
            return iter(())
        plan = self._plan
        numbers = plan.utterances(np.concatenate(batches))
        used, first, counts = np.unique(numbers, return_index=True, return_counts=True)
        order = np.argsort(first)
        places = used[order].tolist()
        chunks = Counter[str]()
        for place, count in zip(places, counts[order].tolist(), strict=True):
            chunks[plan.names[place]] += count
        frames = self._held or PassingFrames(chunks, plan.cutting.length)
        missing = [name for name in chunks if name not in frames]
        self._chosen[:] = [[name] for name in missing]
        read: Iterator[Batch] = iter(self._loader) if missing else iter(())
        lengths = {plan.names[place]: int(plan.frames[place]) for place in places}
        return self._cut(batches, frames, _sequences(read, lengths))

    def _cut(
        self,
        batches: Sequence[Numbers],
        frames: HeldFrames | PassingFrames,
        read: Iterator[tuple[str, dict[str, Tensor]]],
    ) -> Iterator[Batch]:
        """Yield batches."""
        plan = self._plan
        for chunks in batches:
            names = [plan.names[place] for place in plan.utterances(chunks)]
            for name in names:
                while name not in frames:
                    frames.put(*next(read))
            yield names, _with_lengths(frames.cut(names, plan.starts(chunks)))


class LoadedShare:
    """The batches of one learner, which are read when they are iterated over."""

    def __init__(self, epoch: EpochChunks, batches: Sequence[Numbers]) -> None:
        self._epoch, self._batches = epoch, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return self._epoch.load_chunks(self._batches)

    def without_first(self, count: int) -> "LoadedShare":
        """Return the batches behind the first `count`, without reading those."""
        return LoadedShare(self._epoch, self._batches[count:])


def _sequences(
    read: Iterable[Batch], lengths: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the utterances of batches of one, with their sequences (T, ...)."""
    for (name,), batch in read:
        sequences = {
            key: value[0]
            for key, value in batch.items()
            if not key.endswith("_lengths")
        }
        found = {key: len(value) for key, value in sequences.items()}
        if set(found.values()) != {lengths[name]}:
            raise InputError(
                f"{name}: {lengths[name]} frames in the shape file, but {found}"
            )
        yield name, sequences


def _with_lengths(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return sequences (B, T, ...) with ESPnet's tensors of their equal lengths."""
    lengths = {
        f"{key}_lengths": torch.full(
            (len(values),), values.shape[1], dtype=torch.long, device=values.device
        )
        for key, values in tensors.items()
    }
    return tensors | lengths
