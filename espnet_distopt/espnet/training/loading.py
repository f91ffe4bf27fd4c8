"""ESPnet's batch iterators, to be begun anywhere."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader


def without_first(iterator: Iterable[Any], count: int) -> Iterable[Any]:
    """Return `iterator` without its first `count` batches, unread where possible."""
    if count == 0:
        return iterator
    if isinstance(iterator, DataLoader) and isinstance(iterator.batch_sampler, list):
        return with_batches(iterator, iterator.batch_sampler[count:])
    return islice(iterator, count, None)


def with_batches(
    loader: DataLoader[Any], batches: Any, again: bool = False
) -> DataLoader[Any]:
    """Return `loader` with other batches.

    Args:
        loader: ESPnet's.
        batches: yields lists of utterances.
        again: it will be iterated over several times, by the same workers.
    """
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=again and loader.num_workers > 0,
    )
