"""A learner's batches of an epoch: its share, or what it takes from a work queue.

Lightning asks the strategy to process each loader of training. The strategy puts a
`LearnerLoader` in its place, which begins where this learner was stopped. Where
learners step alone, and the loader has numbered batches, it is a `QueuedLoader`: the
learners' shares are those of stock Lightning, and a learner that has finished its share
takes batches from the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

Batches = Sequence[Sequence[Any]]
"""The indices of the samples of each batch."""

READ_AHEAD = 4
"""The number of batches that a learner takes from another at a time, for each process
that reads its data; each reads two batches ahead."""


class Place(Protocol):
    """Where this learner is in an epoch: what a loader asks the fit, and tells it."""

    session: Session
    begun: int

    def take_position(self) -> dict[str, Any] | None:
        """Return where to begin the epoch, once; None for its first batch."""
        ...

    def begin_loading(self, random: dict[str, Any]) -> None:
        """Note the state of the random numbers before the first batch."""
        ...

    def begin_queue(self, batches: "QueuedBatches", done: int) -> None:
        """Note this learner's batches; the schedule has made `done` steps."""
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
        # A loader draws random numbers when it begins, and must draw the same ones.
        set_random_state(position["began"])
        place.begin_loading(position["began"])
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


def with_batches(
    loader: DataLoader[Any], batches: Any, again: bool = False
) -> DataLoader[Any]:
    """Return `loader` with other batches.

    Args:
        loader: the loader.
        batches: an iterable of lists of samples.
        again: whether it is iterated over several times; its processes then stay alive.
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
    )


def shares_sampler(loader: Any, size: int) -> DistributedSampler[Any] | None:
    """Return what divides the samples of the loader among learners, if that is known.

    Args:
        loader: the loader with the share of this learner.
        size: number of learners.
    """
    if not has_numbered_batches(loader):
        return None
    sampler = getattr(loader.batch_sampler, "sampler", None)
    known = isinstance(sampler, DistributedSampler) and sampler.num_replicas == size
    return sampler if known else None


def batches_of_all(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], epoch: int
) -> Batches:
    """Return the batches of all learners in an epoch, `in_turn`.

    Args:
        loader: the loader with the share of this learner.
        sampler: what divides the samples.
        epoch: the number of the epoch, from 0.
    """
    sampler.set_epoch(epoch)
    own, shares = sampler.rank, []
    for rank in range(sampler.num_replicas):
        sampler.rank = rank
        shares.append(batches_of(loader))
    sampler.rank = own
    return in_turn(shares)


def in_turn(shares: Sequence[Batches]) -> Batches:
    """Return all batches: the first of each learner, then the second of each, and on.

    Args:
        shares: the batches of each learner, equally many.
    """
    return [batch for batches in zip(*shares, strict=True) for batch in batches]


class QueuedBatches:
    """The batches that one learner takes from the work queue of an epoch.

    All learners construct it together, at the beginning of the epoch.

    Args:
        session: the session of this learner.
        loader: reads batches.
        batches: the batches of all learners, `in_turn`. Where K learners step together,
            they train on K of them at a time; the last ones are repeated to fill that.
        state: what `state_dict` has returned; None at the beginning.

    Attributes:
        queue: the work queue, whose items are the batches, K at a time.
    """

    def __init__(
        self,
        session: Session,
        loader: DataLoader[Any],
        batches: Batches,
        state: dict[str, Any] | None = None,
    ) -> None:
        learner = session.learner
        ranks = session.algorithm.lockstep(learner)
        self._session, self._loader, self._batches = session, loader, batches
        self._together, self._place = len(ranks), ranks.index(learner.rank)
        self._taken: list[int] = []
        self.queue = WorkQueue(
            session,
            -(-len(batches) // len(ranks)),
            max(1, READ_AHEAD * loader.num_workers),
            state,
        )

    def __iter__(self) -> Iterator[Any]:
        chosen: list[Sequence[Any]] = []
        loader = with_batches(self._loader, chosen, again=True)

        def load(items: Sequence[int]) -> Iterable[tuple[int, Any]]:
            chosen[:] = map(self._indices, items)
            return zip(items, loader, strict=True)

        for item, batch in self.queue.read(load):
            self._taken.append(item)
            yield batch

    def _indices(self, item: int) -> Sequence[Any]:
        number = item * self._together + self._place
        return self._batches[number % len(self._batches)]

    def state_dict(self, begun: int) -> dict[str, Any]:
        """Return what is left to do; all learners call this, and none is training.

        Args:
            begun: the number of batches that this learner has trained on. Lightning has
                read one more, which nobody trains on before the run is resumed.
        """
        state = self.queue.state_dict()
        read = self._taken[begun:]
        mean = self._session.mean(float(len(read)))
        state["held"] = [*read, *state["held"]]
        state["started"] -= round(mean * self.queue.groups)
        return state


class QueuedLoader(LearnerLoader):
    """A loader of training whose batches come from a work queue.

    It has no length once a fit has begun, because nobody knows how many batches a
    learner will take; before that, its length is that of an equal share.

    Args:
        loader: the loader, which has numbered batches.
        place: returns where this learner is in the fit; None before the fit begins.
        batches: returns those of all learners in the epoch that begins, `in_turn`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        place: Callable[[], Place | None],
        batches: Callable[[], Batches],
    ) -> None:
        super().__init__(loader, place)
        self.__dict__.update(_batches=batches)

    def __len__(self) -> int:
        if self._place() is not None:
            raise TypeError("a learner takes as many batches as it can")
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        place = self._place()
        assert place is not None
        position = place.take_position()
        if position is not None:
            set_random_state(position["began"])
        place.begin_loading(random_state())
        state = position["queue"] if position else None
        batches = QueuedBatches(place.session, self._loader, self._batches(), state)
        place.begin_queue(batches, position["scheduled"] if position else 0)
        if position is not None:
            set_random_state(position["random"])
        yield from batches
