"""Learning-rate schedules of learners whose epochs are not those of Lightning's loop.

With a work queue learners make unequal numbers of steps, so a schedule by step follows
all of them (`StepSchedule`). And the step of a schedule by epoch can be taken back
(`EpochSchedule`).
"""

from collections.abc import Callable
from copy import deepcopy
from math import lcm
from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from espnet_distopt.core.shared_schedule import SharedSchedule
from espnet_distopt.errors import InputError
from espnet_distopt.work_queue import WorkQueue

State = dict[str, Any]


class StandIn:
    """Stands in the place of a scheduler; all but the steps is the scheduler's own."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        if name == "_scheduler":
            raise AttributeError(name)  # A copy that is being made has none yet.
        return getattr(self._scheduler, name)


class StepSchedule(StandIn):
    """Steps a scheduler by the mean progress of all learners (`SharedSchedule`).

    It does after batches whose number is a multiple of the frequency.
    """

    def __init__(self, scheduler: Any, frequency: int = 1) -> None:
        super().__init__(scheduler)
        self._frequency = frequency
        self._queue: WorkQueue | None = None
        self._accumulated: Callable[[], int] = lambda: 1
        self._shared = SharedSchedule(scheduler)

    @property
    def done(self) -> int:
        """The number of steps that the scheduler has made in this epoch."""
        return self._shared.done

    def begin_epoch(
        self, queue: WorkQueue, accumulated: Callable[[], int], done: int
    ) -> None:
        """Follow the queue of an epoch, in which so many steps have been made before.

        `accumulated` returns the number of batches of a step, which a callback may set
        after the epoch's loader has begun.
        """
        self._queue, self._accumulated = queue, accumulated
        self._shared = SharedSchedule(self._scheduler, done)

    def step(self, *place: Any, **named: Any) -> None:
        """Step as often as the scheduler is behind; Lightning calls it each step.

        The module's `lr_scheduler_step` may give the number of this learner's own
        steps, in whose place comes the mean progress of all learners.

        Raises:
            InputError: the place is a float, and so counts parts of epochs.
        """
        if self._queue is None:
            self._scheduler.step(*place, **named)
            return
        if any(isinstance(each, float) for each in (*place, *named.values())):
            raise InputError(
                f"lr_scheduler_step: {type(self._scheduler).__name__}.step has a part "
                "of an epoch, and with a work queue a schedule by step counts steps: "
                "leave the argument out, or give DistoptStrategy work_queue=False"
            )
        # Lightning reads one batch ahead, which counts as begun on each learner.
        self._shared.step_to(self._due(self._queue.step - 1))

    def finish_epoch(self) -> None:
        """Step to the epoch's last step, where all learners end the epoch."""
        if self._queue is not None:
            batches = self._queue.steps
            # The optimizer steps with the last batch, whatever its number.
            extra = batches % self._accumulated() and not batches % self._frequency
            self._shared.step_to(self._due(batches) + bool(extra))
            self._queue = None

    def _due(self, batches: int) -> int:
        """Return how often Lightning steps in so many batches of an epoch."""
        return batches // lcm(self._accumulated(), self._frequency)


def share(configs: list[LRSchedulerConfig]) -> list[StepSchedule]:
    """Wrap the schedulers that step with steps of the optimizer; return the wrappers.

    Lightning then calls each of them in every step, because their frequency counts the
    learners' mean progress.
    """
    found: list[StepSchedule] = []
    for config in configs:
        if config.interval != "step" or config.reduce_on_plateau:
            continue
        scheduler: Any = config.scheduler
        if not isinstance(scheduler, StepSchedule):
            scheduler = StepSchedule(scheduler, config.frequency)
            config.scheduler, config.frequency = scheduler, 1
        found.append(scheduler)
    return found


class EpochSchedule(StandIn):
    """Remembers the schedule as it was before its step at the end of the epoch.

    Lightning makes that step after a learner's last batch, before the learners meet. A
    learner that is stopped there ends the epoch again when the run is resumed, and
    steps again: its checkpoint must have the schedule of before.

    Attributes:
        before: its state then, and the options of the optimizer's groups; None before
            it has stepped in this epoch.
    """

    def __init__(self, scheduler: Any, optimizer: Optimizer) -> None:
        super().__init__(scheduler)
        self._optimizer = optimizer
        self.before: tuple[State, list[State]] | None = None

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step, and remember what was before."""
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]
        self.before = deepcopy((self._scheduler.state_dict(), groups))
        self._scheduler.step(*args, **kwargs)


def remember(
    configs: list[LRSchedulerConfig], optimizer: Optimizer
) -> dict[int, EpochSchedule]:
    """Wrap the schedulers that step with every epoch, for an epoch that begins.

    Returns the wrappers, by their numbers among all schedulers.
    """
    found: dict[int, EpochSchedule] = {}
    for number, config in enumerate(configs):
        if config.interval != "epoch" or config.reduce_on_plateau:
            continue
        scheduler: Any = config.scheduler
        if not isinstance(scheduler, EpochSchedule):
            scheduler = EpochSchedule(scheduler, optimizer)
            config.scheduler = scheduler
        scheduler.before = None
        found[number] = scheduler
    return found


def take_back(schedules: dict[int, EpochSchedule], checkpoint: State) -> None:
    """Put the schedules of before this epoch's end into Lightning's checkpoint.

    They are those that `remember` has returned when the epoch began.
    """
    # They have stepped in turn, so the options of before are those the first one found.
    for number, schedule in reversed(schedules.items()):
        if schedule.before is None:
            continue
        checkpoint["lr_schedulers"][number], groups = schedule.before
        (optimizer,) = checkpoint["optimizer_states"]
        for saved, before in zip(optimizer["param_groups"], groups, strict=True):
            saved.update(before)
