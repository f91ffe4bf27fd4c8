"""Which chunks are in which batch of an epoch: known before anything is read.

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.espnet.training.cutting import Cutting, batches_of

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Utterances:
    """All utterances that have a chunk, and how an epoch reads them.

    Attributes:
        names: Their ids.
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

    def chunks_of(self, utterance: int) -> tuple[int, int]:
        """Return the first chunk of the utterance at a place in `names`, and the end.

        The end is the number behind that of the last one.
        """
        first = int(self.ends[utterance - 1]) if utterance else 0
        return first, int(self.ends[utterance])

    def starts(self, utterance: int, chunks: Numbers) -> Numbers:
        """Return the first frames of chunks of the utterance at a place in `names`."""
        first, _ = self.chunks_of(utterance)
        places = chunks - first
        starts: Numbers = self._starts[utterance] + self.cutting.step * places
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
