"""The batches that a learner trains on in an epoch: ESPnet's, or those of a work queue.

ESPnet divides the batches of a training among the learners once. Where a learner may
die and the others go on, those who live divide each epoch's instead. Where learners
step alone, a work queue deals out the pieces of the batches. Each learner then
has a piece of every batch at first, as where learners step together, and the order of
the batches is the same. But if a learner falls behind, others that have finished their
pieces take some of its own. So every learner must be able to load any piece.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler
from espnet2.tasks.abs_task import IteratorOptions
from torch import Tensor
from torch.utils.data import DataLoader

from espnet_distopt.algorithms import lookup
from espnet_distopt.core.loaders import with_batches
from espnet_distopt.core.shared_schedule import SharedSchedule
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session, steps_alone
from espnet_distopt.work_queue import WorkQueue

Batch = tuple[list[str], dict[str, Tensor]]
"""The names of a batch's utterances, and ESPnet's tensors by name."""


def length(iterator: object) -> int | None:
    """Return the number of batches of `iterator`, or None if it does not know it."""
    try:
        return len(iterator)  # type: ignore[arg-type]
    except TypeError:
        return None


def loss_weight(batch: Batch) -> int:
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

    ESPnet's data loaders, and batches with a method of this name, do not even read
    those. Other iterators read them here, so that they draw no random numbers once a
    run that is resumed has restored its own.
    """
    if count == 0:
        return iterator
    if hasattr(iterator, "without_first"):
        rest: Iterable[Any] = iterator.without_first(count)
        return rest
    if isinstance(iterator, DataLoader) and isinstance(iterator.batch_sampler, list):
        return with_batches(iterator, iterator.batch_sampler[count:])
    batches = iter(iterator)
    for _ in islice(batches, count):
        pass
    return batches


def divides_batches(
    args: argparse.Namespace, iter_options: IteratorOptions, mode: str
) -> bool:
    """Return whether the learners divide these batches themselves, not ESPnet.

    They do where learners step alone: a work queue deals the batches of training out.
    They also do where a learner may die and the others go on. They do not if
    ESPnet mixes the utterances of different batches after it has cut them, nor if it
    builds several iterators, one after the other, within an epoch. The mode is ESPnet's
    `train`, `valid` or `plot_att`.
    """
    if args.distopt is None or not iter_options.distributed:
        return False
    if args.multiple_iterator or args.shuffle_within_batch:
        return False
    survives = bool(lookup(args.distopt).algorithm.survives)
    return survives and mode in ("train", "valid")


def takes_static_shards(algorithm: str | None, factory: AbsIterFactory) -> bool:
    """Return whether learners that step alone get fixed shares of the batches."""
    return steps_alone(algorithm) and not isinstance(factory, DealingIterFactory)


def whole_batches(
    args: argparse.Namespace, iter_options: IteratorOptions, size: int
) -> tuple[argparse.Namespace, IteratorOptions]:
    """Return options by which ESPnet makes batches for `size` learners, uncut."""
    whole = argparse.Namespace(**{**vars(args), "min_batch_size": size})
    return whole, replace(iter_options, distributed=False)


Piece = tuple[int, int]
"""(batch, learner): what the learner has of the batch if nobody takes it."""


class EpochBatches(ABC):
    """The batches of an epoch, in their order."""

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
        """Load the share of the epoch of one of some learners; its place is from 0.

        They are as many as there are pieces of a batch, or fewer.
        """


class DealingIterFactory(AbsIterFactory):
    """Makes the batches of an epoch, which the learners divide themselves."""

    @abstractmethod
    def build_iter(self, epoch: int, shuffle: bool | None = None) -> EpochBatches:
        """Return the batches of an epoch."""


class UncutBatches(DealingIterFactory):
    """Wraps ESPnet's factory of batches of utterances, which it has not cut.

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
    """

    def __init__(self, loader: DataLoader[Any], size: int) -> None:
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


class QueuedBatches:
    """The batches that one learner trains on in an epoch.

    All learners construct it together, at the beginning of the epoch.

    Attributes:
        queue: The work queue. With G groups of learners that step together, its item
            b * G + g has the pieces of group g in batch b.
        scheduler: The scheduler that the training loop is to step.

    Raises:
        InputError: `state` is of other batches, or of another number of learners.
    """

    def __init__(
        self,
        epoch: EpochBatches,
        session: Session,
        scheduler: Any,
        accum_grad: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._epoch = epoch
        self._session = session
        learner = session.learner
        ranks = session.algorithm.lockstep(learner)
        self._size, self._together = learner.size, len(ranks)
        self._place = ranks.index(learner.rank)
        self.queue = WorkQueue(
            session,
            len(epoch) * (self._size // self._together),
            state["queue"] if state else None,
        )
        self.scheduler = scheduler
        if isinstance(scheduler, AbsBatchStepScheduler):
            done = state["scheduled"] if state else 0
            self.scheduler = QueueSchedule(scheduler, self.queue, accum_grad, done)

    def __len__(self) -> int:
        return len(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        def load(items: Sequence[int]) -> Iterable[Batch]:
            return self._epoch.load([self._piece(item) for item in items])

        yield from self.queue.read(load)

    def _piece(self, item: int) -> Piece:
        """Return this learner's piece of an item of the queue."""
        batch, group = divmod(item, self.queue.groups)
        return batch, group * self._together + self._place

    def finish(self) -> None:
        """Bring the schedule to the epoch's end, once all items have been taken."""
        if isinstance(self.scheduler, QueueSchedule):
            self.scheduler.finish()

    def lost(self, trained: int) -> tuple[float, float]:
        """Return what the dead have had of the epoch's items, once it has ended.

        That is the number of items that they had begun, and of those that they had
        taken and nobody has begun. All living learners call this, with the number of
        items that they have trained on.
        """
        if self._session.learner.members.version == 0:
            return 0.0, 0.0
        mean = self._session.mean(trained)
        groups = len(self._session.learner.members.ranks) / self._together
        begun = self.queue.count_started()
        return begun - mean * groups, self.queue.items - begun

    @property
    def scheduled(self) -> int:
        """The number of steps that the scheduler has made in this epoch."""
        schedule = self.scheduler
        return schedule.done if isinstance(schedule, QueueSchedule) else 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is left to do; no learner may be training."""
        return {"queue": self.queue.state_dict(), "scheduled": self.scheduled}


class QueueSchedule(AbsBatchStepScheduler):
    """ESPnet's learning-rate schedule, stepped by the mean progress of all learners.

    It has already made the steps `done` in this epoch.
    """

    def __init__(
        self, scheduler: Any, queue: WorkQueue, accum_grad: int, done: int = 0
    ) -> None:
        self._shared = SharedSchedule(scheduler, done)
        self._queue = queue
        self._accum_grad = accum_grad

    @property
    def done(self) -> int:
        """The number of steps that the scheduler has made in this epoch."""
        return self._shared.done

    def step(self, epoch: int | None = None) -> None:
        """Step as often as the scheduler is behind; call this after each update."""
        self._shared.step_to(self._queue.step // self._accum_grad)

    def finish(self) -> None:
        """Step to the epoch's last step, where all learners end the epoch."""
        self._shared.step_to(self._queue.steps // self._accum_grad)

    def state_dict(self) -> Any:
        """Return the state of ESPnet's scheduler."""
        return self._shared.scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give ESPnet's scheduler the state that `state_dict` returned."""
        self._shared.scheduler.load_state_dict(state)
