"""ESPnet's batch iterators, begun at any batch or given other batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from espnet_distopt.core.loaders import with_batches

Batch = tuple[list[str], dict[str, Tensor]]
"""The names of a batch's utterances, and ESPnet's tensors by name."""


class Skippable(ABC):
    """Batches that need not be read to be skipped."""

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Read the batches."""

    @abstractmethod
    def without_first(self, count: int) -> "Skippable":
        """Return the batches behind the first `count`."""


def length(iterator: Iterable[Any]) -> int | None:
    """Return the number of batches of `iterator`, or None if it does not know it."""
    try:
        return len(iterator)  # type: ignore[arg-type]
    except TypeError:
        return None


def weight(batch: Batch) -> int:
    """Return by what ESPnet's models weigh the loss of a batch.

    That is its number of utterances. The loss of a language model, whose batches have
    text alone, is a mean over symbols: it counts these, and the end of each line.
    """
    names, tensors = batch
    if tensors.keys() == {"text", "text_lengths"}:
        return int(tensors["text_lengths"].sum()) + len(names)
    return len(names)


def without_first(iterator: Iterable[Any], count: int) -> Iterable[Any]:
    """Return `iterator` without its first `count` batches.

    ESPnet's data loaders and `Skippable` batches do not even read those; other
    iterators have to.
    """
    if count == 0:
        return iterator
    if isinstance(iterator, Skippable):
        return iterator.without_first(count)
    if isinstance(iterator, DataLoader) and isinstance(iterator.batch_sampler, list):
        return with_batches(iterator, iterator.batch_sampler[count:])
    return _Rest(iterator, count)


class _Rest:
    """Batches behind the first ones, which are read and skipped by `iter` itself.

    A run that is resumed restores its random numbers after `iter`, so the reading of
    skipped batches changes them no more.
    """

    def __init__(self, iterator: Iterable[Any], count: int) -> None:
        self._iterator, self._count = iterator, count

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._iterator)
        for _ in islice(batches, self._count):
            pass
        return batches
