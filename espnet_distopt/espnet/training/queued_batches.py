"""ESPnet's batches from a work queue, for learners that do not step together.

Each learner has a piece of every batch, as where learners step together, and the order
of the batches is the same. But if a learner falls behind, others that have finished
their pieces take some of its own. So every learner must be able to read all utterances.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler
from espnet2.tasks.abs_task import IteratorOptions

from espnet_distopt.algorithms import lookup
from espnet_distopt.espnet.training.epoch_batches import (
    DealingIterFactory,
    EpochBatches,
    Piece,
)
from espnet_distopt.espnet.training.loading import Batch
from espnet_distopt.espnet.training.shared_schedule import SharedSchedule
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

READ_AHEAD = 4
"""The number of pieces that a learner takes from another at a time, for each process
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


def divides_batches(
    args: argparse.Namespace, iter_options: IteratorOptions, mode: str
) -> bool:
    """Return whether the learners divide these batches themselves, not ESPnet."""
    return takes_from_queue(args, iter_options, mode) or deals_validation(
        args, iter_options, mode
    )


def takes_static_shards(algorithm: str | None, factory: AbsIterFactory) -> bool:
    """Return whether learners that step alone get fixed shares of the batches."""
    return steps_alone(algorithm) and not isinstance(factory, DealingIterFactory)


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
            max(1, READ_AHEAD * epoch.workers),
            state["queue"] if state else None,
        )
        self.scheduler = scheduler
        if isinstance(scheduler, AbsBatchStepScheduler):
            done = state["scheduled"] if state else 0
            self.scheduler = SharedSchedule(scheduler, self.queue, accum_grad, done)

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
