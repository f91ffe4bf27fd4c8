"""A learning-rate schedule by epoch, whose step at its end can be taken back."""

from copy import deepcopy
from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from espnet_distopt.lightning.shared_schedule import StandIn

State = dict[str, Any]


class EpochSchedule(StandIn):
    """Remembers the schedule as it was before its step at the end of the epoch.

    Lightning makes that step after a learner's last batch, before the learners meet. A
    learner that is stopped there ends the epoch again when the run is resumed, and
    steps again: its checkpoint must have the schedule of before.

    Args:
        scheduler: the scheduler, one that steps with every epoch.
        optimizer: the optimizer whose options it changes.
    """

    def __init__(self, scheduler: Any, optimizer: Optimizer) -> None:
        super().__init__(scheduler)
        self._optimizer = optimizer
        self._before: tuple[State, list[State]] | None = None

    def begin_epoch(self) -> None:
        """Forget the end of the epoch before."""
        self._before = None

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step, and remember what was before."""
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]
        self._before = deepcopy((self._scheduler.state_dict(), groups))
        self._scheduler.step(*args, **kwargs)

    def take_back(self, number: int, checkpoint: State) -> None:
        """Put the schedule of before this epoch's step into a checkpoint.

        Args:
            number: the number of this schedule in the checkpoint.
            checkpoint: what Lightning saves, which is changed.
        """
        if self._before is None:
            return
        state, groups = self._before
        checkpoint["lr_schedulers"][number] = state
        (optimizer,) = checkpoint["optimizer_states"]
        for saved, before in zip(optimizer["param_groups"], groups, strict=True):
            saved.update(before)


def remember(
    configs: list[LRSchedulerConfig], optimizer: Optimizer
) -> dict[int, EpochSchedule]:
    """Wrap the schedulers that step with every epoch, for an epoch that begins.

    Args:
        configs: the schedulers, as Lightning has them.
        optimizer: their optimizer.

    Returns:
        the wrappers, by their numbers among all schedulers.
    """
    found: dict[int, EpochSchedule] = {}
    for number, config in enumerate(configs):
        if config.interval != "epoch" or config.reduce_on_plateau:
            continue
        scheduler: Any = config.scheduler
        if not isinstance(scheduler, EpochSchedule):
            scheduler = EpochSchedule(scheduler, optimizer)
            config.scheduler = scheduler
        scheduler.begin_epoch()
        found[number] = scheduler
    return found


def take_back(schedules: dict[int, EpochSchedule], checkpoint: State) -> None:
    """Put the schedules of before this epoch's end into a checkpoint.

    Args:
        schedules: what `remember` has returned when the epoch began.
        checkpoint: what Lightning saves, which is changed.
    """
    # They have stepped in turn, so the options of before are those the first one found.
    for number, schedule in reversed(schedules.items()):
        schedule.take_back(number, checkpoint)
