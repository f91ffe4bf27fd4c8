"""The batches of an epoch before the learners have divided them.

Where learners step alone, a work queue deals out the pieces of the batches, so no
learner knows beforehand which it will train on. Here every learner can load any piece.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.tasks.abs_task import IteratorOptions
from torch.utils.data import DataLoader

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.loading import Batch

Piece = tuple[int, int]
"""(batch, learner): what the learner has of the batch if nobody takes it."""


class EpochBatches(ABC):
    """The batches of an epoch, in their order.

    Attributes:
        workers: The number of processes that read the data; 0 for none.
    """

    workers: int

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def load(self, pieces: Sequence[Piece]) -> Iterable[Batch]:
        """Load pieces, in the order of the argument.

        What was returned before is no longer used then.
        """

    @abstractmethod
    def share(self, place: int, learners: int) -> Iterable[Batch]:
        """Load the whole epoch's share of one of some learners.

        Args:
            place: Which of them it is, from 0.
            learners: How many divide the epoch: as many as there are pieces of a batch,
                or fewer.
        """


class DealingIterFactory(AbsIterFactory):
    """Makes the batches of an epoch, which the learners divide themselves."""

    @abstractmethod
    def build_iter(self, epoch: int, shuffle: bool | None = None) -> EpochBatches:
        """Return the batches of an epoch."""


def whole_batches(
    args: argparse.Namespace, iter_options: IteratorOptions, size: int
) -> tuple[argparse.Namespace, IteratorOptions]:
    """Return options by which ESPnet makes batches for `size` learners, uncut."""
    whole = argparse.Namespace(**{**vars(args), "min_batch_size": size})
    return whole, replace(iter_options, distributed=False)


class UncutBatches(DealingIterFactory):
    """Wraps ESPnet's factory of batches of utterances, which it has not cut.

    Args:
        stock: ESPnet's factory.
        size: The number of learners.

    Raises:
        InputError: A batch has fewer utterances than there are learners.
    """

    def __init__(self, stock: SequenceIterFactory, size: int) -> None:
        self._stock, self._size = stock, size
        smallest = min(map(len, stock.sampler), default=size)
        if smallest < size:
            raise InputError(
                f"a batch of {smallest} utterances for {size} learners: each needs one "
                "at least; raise batch_size or batch_bins, or take fewer learners"
            )

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> "EpochUtterances":
        """Return the batches of an epoch."""
        return EpochUtterances(self._stock.build_iter(epoch, shuffle), self._size)


class EpochUtterances(EpochBatches):
    """Batches of utterances, each cut as stock ESPnet cuts it.

    Learner r of S has every S-th utterance of a batch, from the r-th.

    Args:
        loader: ESPnet's data loader of these batches.
        size: The number of learners.
    """

    def __init__(self, loader: DataLoader[Any], size: int) -> None:
        self.workers = loader.num_workers
        self._size = size
        self._batches: Sequence[Sequence[str]] = loader.batch_sampler  # type: ignore[assignment]
        self._chosen: list[Sequence[str]] = []
        self._loader = with_batches(loader, self._chosen, again=True)

    def __len__(self) -> int:
        return len(self._batches)

    def load(self, pieces: Sequence[Piece]) -> DataLoader[Any]:
        """Load pieces, by a data loader that reads ahead."""
        return self._load([self._batches[b][r :: self._size] for b, r in pieces])

    def share(self, place: int, learners: int) -> DataLoader[Any]:
        """Load every `learners`-th utterance of each batch."""
        return self._load([batch[place::learners] for batch in self._batches])

    def _load(self, batches: Sequence[Sequence[str]]) -> DataLoader[Any]:
        self._chosen[:] = batches
        return self._loader
