"""A data loader with other batches, in all else the loader that was there."""

from typing import Any

from torch.utils.data import DataLoader


def with_batches(
    loader: DataLoader[Any], batches: Any, again: bool = False
) -> DataLoader[Any]:
    """Return `loader` with other batches.

    Args:
        loader: the loader that a user or a framework has made.
        batches: the new batches: an iterable of lists of samples.
        again: whether the result is iterated over several times. Its worker processes
            then stay alive in between.
    """
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=again and loader.num_workers > 0,
        in_order=loader.in_order,
    )
