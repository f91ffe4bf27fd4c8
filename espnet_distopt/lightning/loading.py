"""A learner's batches of an epoch, begun where the learner was stopped.

Lightning asks the strategy to process each loader of training. The strategy puts a
`LearnerLoader` in its place. Where learners step alone, and the loader has numbered
batches, it is a `queued_loading.QueuedLoader`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, IterableDataset

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.session import Session

Batches = Sequence[Sequence[Any]]
"""The indices of the samples of each batch."""


class Place(Protocol):
    """Where this learner is in an epoch: what a loader asks the fit, and tells it."""

    session: Session
    begun: int

    @property
    def loaders(self) -> int:
        """The number of loaders of training, whose batches Lightning combines."""
        ...

    @property
    def epoch_is_over(self) -> bool:
        """Whether the fit has been resumed after the last batch of its epoch."""
        ...

    def take_position(self) -> dict[str, Any] | None:
        """Return where to begin the epoch, once; None for its first batch."""
        ...

    def begin_loading(self, random: dict[str, Any]) -> None:
        """Note the state of the random numbers before the first batch."""
        ...

    def begin_queue(self, batches: Any, done: Sequence[int]) -> None:
        """Note this learner's `QueuedBatches`; schedules have made `done` steps."""
        ...


class LearnerLoader:
    """A loader whose first epoch may begin within; all else is the loader's own.

    Args:
        loader: what Lightning iterates over otherwise.
        place: returns where this learner is in the fit; None before the fit begins.
    """

    def __init__(self, loader: Any, place: Callable[[], Place | None]) -> None:
        self.__dict__.update(_loader=loader, _place=place)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __iter__(self) -> Iterator[Any]:
        place = self._place()
        position = place.take_position() if place is not None else None
        if place is None or position is None:
            if place is not None:
                place.begin_loading(random_state())
            yield from self._loader
            return
        if place.loaders > 1:
            raise InputError(
                f"DistoptStrategy: the run was stopped within an epoch, and has "
                f"{place.loaders} loaders of training, of which each was elsewhere: go "
                "on from the checkpoint of an epoch's end (ckpt_path=...)"
            )
        # A loader draws random numbers when it begins, and must draw the same ones.
        set_random_state(position["began"])
        place.begin_loading(position["began"])
        batches: Iterator[Any] = iter(())
        if not position["ended"]:
            batches = without_first(self._loader, position["batches"])
        set_random_state(position["random"])
        yield from batches


def without_first(loader: Any, count: int) -> Iterator[Any]:
    """Return an iterator over `loader` without its first batches.

    A `DataLoader` with a map-style dataset does not read them; others have to.
    """
    if not has_numbered_batches(loader):
        return islice(iter(loader), count, None)
    return iter(with_batches(loader, batches_of(loader)[count:]))


def has_numbered_batches(loader: Any) -> bool:
    """Return whether any learner can load any batch of the loader, by its samples."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


class _Indices(Dataset[Any]):
    """A dataset whose samples are their own indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _as_it_is(batch: Any) -> Any:
    return batch


def batches_of(loader: DataLoader[Any]) -> Batches:
    """Return the indices of all batches of the loader's next epoch, reading none.

    It draws the same random numbers as the loader itself would.
    """
    sampler = loader.batch_sampler
    indices: DataLoader[Any] = DataLoader(
        _Indices(),
        batch_sampler=sampler,
        collate_fn=_as_it_is,
        generator=loader.generator,
    )
    return list(indices)
