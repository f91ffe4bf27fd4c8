"""A learning-rate schedule for learners that make unequal numbers of steps."""

from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig

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
        scheduler: the scheduler, one that steps with every step of the optimizer.

    Attributes:
        done: the number of steps that the scheduler has made in this epoch.
    """

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._queue: WorkQueue | None = None
        self._accumulated = 1
        self.done = 0

    def begin_epoch(self, queue: WorkQueue, accumulated: int, done: int) -> None:
        """Follow the queue of an epoch.

        Args:
            queue: the work queue.
            accumulated: the number of batches of a step.
            done: the number of steps made in this epoch before.
        """
        self._queue, self._accumulated, self.done = queue, accumulated, done

    def step(self) -> None:
        """Step as often as the scheduler is behind; Lightning calls it each step."""
        if self._queue is None:
            self._scheduler.step()
        else:
            # Lightning reads one batch ahead, which counts as begun on each learner.
            self._step_to((self._queue.step - 1) // self._accumulated)

    def finish_epoch(self) -> None:
        """Step to the epoch's last step, where all learners end the epoch."""
        if self._queue is not None:
            self._step_to(-(-self._queue.steps // self._accumulated))
            self._queue = None

    def _step_to(self, due: int) -> None:
        for _ in range(due - self.done):
            self._scheduler.step()
        self.done = max(self.done, due)


def share(configs: list[LRSchedulerConfig]) -> list[SharedSchedule]:
    """Wrap the schedulers that step with every step; return the wrappers."""
    found: list[SharedSchedule] = []
    for config in configs:
        if config.interval != "step" or config.frequency != 1:
            continue
        if config.reduce_on_plateau:
            continue
        scheduler: Any = config.scheduler
        if not isinstance(scheduler, SharedSchedule):
            scheduler = config.scheduler = SharedSchedule(scheduler)  # type: ignore[assignment]
        found.append(scheduler)
    return found
