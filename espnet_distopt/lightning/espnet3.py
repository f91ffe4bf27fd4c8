"""What an ESPnet3 module does in each step of distributed training, taken out.

ESPnet3's module meets the others in each step where its `num_device` is not 1, to agree
on non-finite losses. Its `EpochSyncIterator` meets them before each batch, and ends the
epoch for all with the first one. Here the module's `num_device` is 1: a non-finite loss
is one learner's matter. Then the module divides no batches among learners, and this
module does, from the iterator's source: a learner's batches stay as large as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.lightning.loading import (
    Batches,
    batches_of,
    has_numbered_batches,
)


def _is(thing: object, name: str) -> bool:
    """Return whether `thing` is of a class of this name; ESPnet3 may be missing."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def free(module: pl.LightningModule) -> None:
    """Let an ESPnet3 module step by itself; leave any other module as it is."""
    if _is(module, "ESPnetLightningModule"):
        config: Any = module.config
        config.num_device = 1


@dataclass(frozen=True)
class Uncut:
    """Batches that all learners are to take from a work queue.

    Attributes:
        loader: reads the batches.
        batches: the samples of each.
    """

    loader: Any
    batches: Batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def loader(
    iterator: Any,
    trainer: pl.Trainer,
    queued: bool,
    place: tuple[int, int] | None = None,
) -> Any:
    """Return this learner's batches of an ESPnet3 iterator, or a loader as it is.

    Args:
        iterator: ESPnet3's iterator of all batches, or any loader.
        trainer: the trainer.
        queued: whether learners take batches of training from a work queue.
        place: the place of this learner among those that validate, from 0, and their
            number; None: all learners do.

    Raises:
        InputError: the batches have no numbers, so that they cannot be divided.
    """
    if not _is(iterator, "EpochSyncIterator"):
        return iterator
    source = iterator._source
    source = source() if callable(source) else source
    rank, size = place or (trainer.global_rank, trainer.world_size)
    part = "train" if trainer.training else "valid"
    config: Any = trainer.lightning_module.config
    if size == 1 or config.dataloader[part].get("batch_distribution") == "global":
        return source  # Each batch is divided already.
    if not has_numbered_batches(source):
        raise InputError(
            "the batches of this iter_factory have no numbers, and DistoptStrategy "
            "cannot divide them among learners: use SequenceIterFactory"
        )
    batches = batches_of(source)
    if not trainer.training:
        # Validation needs a batch on each learner; none is dropped.
        return with_batches(source, batches[rank::size] or batches)
    if queued:
        return Uncut(source, batches)
    # Learners that step together need equally many batches.
    return with_batches(source, batches[: len(batches) // size * size][rank::size])
