"""A learning-rate schedule for learners that make unequal numbers of steps."""

from collections.abc import Callable
from math import lcm
from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig

from espnet_distopt.errors import InputError
from espnet_distopt.work_queue import WorkQueue


class StandIn:
    """Stands in the place of a scheduler; all but the steps is the scheduler's own.

    Args:
        scheduler: the scheduler.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        if name == "_scheduler":
            raise AttributeError(name)  # A copy that is being made has none yet.
        return getattr(self._scheduler, name)


class SharedSchedule(StandIn):
    """Steps a scheduler by the mean progress of all learners, not by this one's.

    A slow learner makes fewer steps in an epoch than a fast one, so its own steps would
    leave its learning rate behind the schedule. Here the scheduler makes as many steps
    in an epoch as with equal shares, on every learner.

    Args:
        scheduler: the scheduler, one that steps with steps of the optimizer.
        frequency: it steps after batches whose number is a multiple of this one.

    Attributes:
        done: the number of steps that the scheduler has made in this epoch.
    """

    def __init__(self, scheduler: Any, frequency: int = 1) -> None:
        super().__init__(scheduler)
        self._frequency = frequency
        self._queue: WorkQueue | None = None
        self._accumulated: Callable[[], int] = lambda: 1
        self.done = 0

    def begin_epoch(
        self, queue: WorkQueue, accumulated: Callable[[], int], done: int
    ) -> None:
        """Follow the queue of an epoch.

        Args:
            queue: the work queue.
            accumulated: returns the number of batches of a step. A callback may set it
                after the epoch's loader has begun.
            done: the number of steps made in this epoch before.
        """
        self._queue, self._accumulated, self.done = queue, accumulated, done

    def step(self, *place: Any, **named: Any) -> None:
        """Step as often as the scheduler is behind; Lightning calls it each step.

        Args:
            place: the number of this learner's own steps, if `lr_scheduler_step` of the
                module gives it. The mean progress of all learners takes its place.
            named: the same.

        Raises:
            InputError: the place is a float, and so counts parts of epochs.
        """
        if self._queue is None:
            self._scheduler.step(*place, **named)
        else:
            self._check_counts([*place, *named.values()])
            # Lightning reads one batch ahead, which counts as begun on each learner.
            self._step_to(self._due(self._queue.step - 1))

    def _check_counts(self, places: list[Any]) -> None:
        if any(isinstance(place, float) for place in places):
            raise InputError(
                f"lr_scheduler_step: {type(self._scheduler).__name__}.step has a part "
                "of an epoch, and with a work queue a schedule by step counts steps: "
                "leave the argument out, or give DistoptStrategy work_queue=False"
            )

    def finish_epoch(self) -> None:
        """Step to the epoch's last step, where all learners end the epoch."""
        if self._queue is not None:
            batches = self._queue.steps
            # The optimizer steps with the last batch, whatever its number.
            extra = batches % self._accumulated() and not batches % self._frequency
            self._step_to(self._due(batches) + bool(extra))
            self._queue = None

    def _due(self, batches: int) -> int:
        """Return how often Lightning steps in so many batches of an epoch."""
        return batches // lcm(self._accumulated(), self._frequency)

    def _step_to(self, due: int) -> None:
        for _ in range(due - self.done):
            self._scheduler.step()
        self.done = max(self.done, due)


def share(configs: list[LRSchedulerConfig]) -> list[SharedSchedule]:
    """Wrap the schedulers that step with steps of the optimizer; return the wrappers.

    Lightning then calls each of them in every step, because their frequency counts the
    learners' mean progress.
    """
    found: list[SharedSchedule] = []
    for config in configs:
        if config.interval != "step" or config.reduce_on_plateau:
            continue
        scheduler: Any = config.scheduler
        if not isinstance(scheduler, SharedSchedule):
            scheduler = SharedSchedule(scheduler, config.frequency)
            config.scheduler, config.frequency = scheduler, 1
        found.append(scheduler)
    return found
