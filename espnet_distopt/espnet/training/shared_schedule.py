"""A learning-rate schedule of steps, where learners make unequal numbers of them."""

from typing import Any

from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler

from espnet_distopt.work_queue import WorkQueue


class SharedSchedule(AbsBatchStepScheduler):
    """Steps a scheduler to where the samples are that all learners have trained on.

    A learner that makes fewer steps than others would else be behind with its rate, and
    so would all be whose number is not the configured one. Over an epoch the scheduler
    makes as many steps as with equal shares; it never goes back.

    Args:
        scheduler: ESPnet's, of those that step with every batch.
        queue: of this epoch.
        accum_grad: batches per step.
        done: steps that the scheduler has made in this epoch already.

    Attributes:
        done: the same, now.
    """

    def __init__(
        self, scheduler: Any, queue: WorkQueue, accum_grad: int, done: int = 0
    ) -> None:
        self.done = done
        self._scheduler = scheduler
        self._queue = queue
        self._accum_grad = accum_grad

    def step(self, epoch: int | None = None) -> None:
        """After an update: step as often as the scheduler is behind."""
        self._step_to(self._queue.step)

    def finish(self) -> None:
        """At the end of the epoch: step to its last step, as all learners do."""
        self._step_to(self._queue.steps)

    def _step_to(self, batches: int) -> None:
        due = batches // self._accum_grad
        for _ in range(due - self.done):
            self._scheduler.step()
        self.done = max(self.done, due)

    def state_dict(self) -> Any:
        """Return the scheduler's."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give it to the scheduler."""
        self._scheduler.load_state_dict(state)
