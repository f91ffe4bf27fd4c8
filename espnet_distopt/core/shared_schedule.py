"""A learning-rate schedule for learners that make unequal numbers of steps."""

from typing import Any


class SharedSchedule:
    """Steps a scheduler by the mean progress of all learners, not by this one's.

    A slow learner makes fewer steps in an epoch than a fast one, so its own steps would
    leave its learning rate behind the schedule. Here the scheduler makes as many steps
    in an epoch as with equal shares, on every learner. It never goes back.

    Attributes:
        scheduler: the scheduler, which has a method `step`.
        done: number of steps that it has made in this epoch, at this moment.
    """

    def __init__(self, scheduler: Any, done: int = 0) -> None:
        self.scheduler = scheduler
        self.done = done

    def step_to(self, due: int) -> None:
        """Step as often as the scheduler is behind."""
        for _ in range(due - self.done):
            self.scheduler.step()
        self.done = max(self.done, due)
