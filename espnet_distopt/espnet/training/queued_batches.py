"""ESPnet's batches from a work queue, for learners that do not step together.

Stock ESPnet cuts each batch into as many shares as there are learners, and each learner
trains on its own share of every batch. Here the shares are the same, and so is the
order of the batches. But if a learner falls behind, others that have finished theirs
take shares from it. So every learner must be able to read all utterances.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler
from espnet2.tasks.abs_task import IteratorOptions
from torch.utils.data import DataLoader

from espnet_distopt.algorithms import lookup
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.loading import Batch, with_batches
from espnet_distopt.espnet.training.shared_schedule import SharedSchedule
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

READ_AHEAD = 4
"""The number of shares that a learner takes from another at a time, for each process
that reads its data. Each process reads two batches ahead, so with four it reads the
last two while the learner trains on the first two."""


def takes_from_queue(
    args: argparse.Namespace, iter_options: IteratorOptions, mode: str
) -> bool:
    """Return whether the learners take these batches from a work queue.

    They do for training, with an algorithm in which learners step alone. They do not
    if ESPnet mixes the utterances of different batches after it has cut them, nor if it
    builds several iterators, one after the other, within an epoch.
    """
    return (
        mode == "train"
        and iter_options.distributed
        and steps_alone(args.distopt)
        and not args.multiple_iterator
        and not args.shuffle_within_batch
    )


def steps_alone(algorithm: str | None) -> bool:
    """Return whether learners, or nodes of them, step without waiting for others."""
    return algorithm is not None and bool(lookup(algorithm).algorithm.wants_gossip)


def deals_validation(
    args: argparse.Namespace, iter_options: IteratorOptions, mode: str
) -> bool:
    """Return whether the living learners divide these batches of validation anew.

    They do where a learner may die and the others go on.
    """
    return (
        mode == "valid"
        and iter_options.distributed
        and args.distopt is not None
        and bool(lookup(args.distopt).algorithm.survives)
        and not args.multiple_iterator
        and not args.shuffle_within_batch
    )


def takes_static_shards(algorithm: str | None, factory: AbsIterFactory) -> bool:
    """Return whether learners that step alone get fixed shares of the batches."""
    return steps_alone(algorithm) and not isinstance(factory, QueuedIterFactory)


def whole_batches(
    args: argparse.Namespace, iter_options: IteratorOptions, size: int
) -> tuple[argparse.Namespace, IteratorOptions]:
    """Return options by which ESPnet makes batches for `size` learners, uncut."""
    whole = argparse.Namespace(**{**vars(args), "min_batch_size": size})
    return whole, replace(iter_options, distributed=False)


class QueuedIterFactory(AbsIterFactory):
    """Wraps ESPnet's factory of uncut batches, which the learners divide themselves.

    Args:
        stock: ESPnet's factory.
        size: The number of learners.

    Raises:
        InputError: A batch has fewer utterances than there are learners.
    """

    def __init__(self, stock: SequenceIterFactory, size: int) -> None:
        self._stock = stock
        smallest = min(map(len, stock.sampler), default=size)
        if smallest < size:
            raise InputError(
                f"a batch of {smallest} utterances for {size} learners: each needs one "
                "at least; raise batch_size or batch_bins, or take fewer learners"
            )

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> "EpochBatches":
        """Return the batches of an epoch."""
        return EpochBatches(self._stock.build_iter(epoch, shuffle))


class EpochBatches:
    """The batches of an epoch, uncut and in their order.

    Args:
        loader: ESPnet's data loader of these batches.

    Attributes:
        loader: The same.
        batches: The names of the utterances of each batch.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.batches: Sequence[Sequence[str]] = loader.batch_sampler  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.batches)


class QueuedBatches:
    """The batches that one learner trains on in an epoch.

    All learners construct it together, at the beginning of the epoch.

    Args:
        epoch: The epoch's batches.
        session: The session of this learner.
        scheduler: ESPnet's scheduler of its learning rate, or None.
        accum_grad: The number of batches of a step.
        state: What `state_dict` returned in a run that ended within this epoch; None
            without one.

    Attributes:
        queue: The work queue. With G groups of learners that step together, its item
            b * G + g is the share of group g in batch b.
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
            max(1, READ_AHEAD * epoch.loader.num_workers),
            state["queue"] if state else None,
        )
        self.scheduler = scheduler
        if isinstance(scheduler, AbsBatchStepScheduler):
            done = state["scheduled"] if state else 0
            self.scheduler = SharedSchedule(scheduler, self.queue, accum_grad, done)

    def __len__(self) -> int:
        return len(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        chosen: list[Sequence[str]] = []
        loader = with_batches(self._epoch.loader, chosen, again=True)

        def load(items: Sequence[int]) -> DataLoader[Any]:
            chosen[:] = map(self._piece, items)
            return loader

        yield from self.queue.read(load)

    def _piece(self, item: int) -> Sequence[str]:
        """Return the utterances of this learner in an item of the queue."""
        batch, group = divmod(item, self.queue.groups)
        first = group * self._together + self._place
        return self._epoch.batches[batch][first :: self._size]

    def finish(self) -> None:
        """Bring the schedule to the epoch's end, once all items have been taken."""
        if isinstance(self.scheduler, SharedSchedule):
            self.scheduler.finish()

    def lost(self, trained: int) -> tuple[float, float]:
        """Return what the dead have had of the epoch's items, once it has ended.

        All living learners call this.

        Args:
            trained: The number of items that this learner has trained on.

        Returns:
            The number of items that they had begun, and of those that they had taken
            and nobody has begun.
        """
        mean = self._session.mean(trained)
        groups = len(self._session.learner.members.ranks) / self._together
        begun = self.queue.count_started()
        return begun - mean * groups, self.queue.items - begun

    @property
    def scheduled(self) -> int:
        """The number of steps that the scheduler has made in this epoch."""
        schedule = self.scheduler
        return schedule.done if isinstance(schedule, SharedSchedule) else 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is left to do; no learner may be training."""
        return {"queue": self.queue.state_dict(), "scheduled": self.scheduled}
