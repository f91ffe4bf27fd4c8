"""A learning-rate schedule for learners that make unequal numbers of steps."""

from typing import Any

from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler

from espnet_distopt.work_queue import WorkQueue


class SharedSchedule(AbsBatchStepScheduler):
    """Steps a scheduler by the mean progress of all learners, not by this one's.

    A slow learner makes fewer steps in an epoch than a fast one, so its own steps would
    leave its learning rate behind the schedule. Here the scheduler makes as many steps
    in an epoch as with equal shares, on every learner. It never goes back.

    Args:
        scheduler: ESPnet's scheduler, one that steps with every batch.
        queue: The work queue of this epoch.
        accum_grad: The number of batches of a step.
        done: The number of steps that the scheduler has already made in this epoch.

    Attributes:
        done: The same, at this moment.
    """

    def __init__(
        self, scheduler: Any, queue: WorkQueue, accum_grad: int, done: int = 0
    ) -> None:
        self.done = done
        self._scheduler = scheduler
        self._queue = queue
        self._accum_grad = accum_grad

    def step(self, epoch: int | None = None) -> None:
        """Step as often as the scheduler is behind; call this after each update."""
        self._step_to(self._queue.step)

    def finish(self) -> None:
        """Step to the epoch's last step, where all learners end the epoch."""
        self._step_to(self._queue.steps)

    def _step_to(self, batches: int) -> None:
        due = batches // self._accum_grad
        for _ in range(due - self.done):
            self._scheduler.step()
        self.done = max(self.done, due)

    def state_dict(self) -> Any:
        """Return the state of ESPnet's scheduler."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give ESPnet's scheduler the state that `state_dict` returned."""
        self._scheduler.load_state_dict(state)
