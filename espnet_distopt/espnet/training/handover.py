"""What a learner takes over that joins a running ESPnet training.

A replacement joins before ESPnet's trainer begins. From a member the session takes the
parameters and the optimizer's state; a `Handover` takes beside them where the member
stands in the epoch, in the learning-rate schedule and with the loss scale. ESPnet's
reporter and its schedulers of epochs come from the checkpoint of the epoch before: it
is written before the learners meet to open the next epoch's work queue, and so before
any member makes the step at whose end it hands its state over.

If that checkpoint is missing, because its writer has died in between, a replacement
waits for the next epoch. So its reporter has every epoch, and it can lead one day.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet2.train.trainer import Trainer
from torch import nn

from espnet_distopt.core.driver import JoinLater
from espnet_distopt.espnet.training import side_files
from espnet_distopt.espnet.training.learner_state import State


class Handover:
    """What a member hands over to a replacement beside the session.

    Args:
        output_dir: The experiment's directory.

    Attributes:
        offered: It returns the state of this learner between two steps of its epoch.
        taken: What this learner has taken over from a member; None if it has not.
    """

    def __init__(self, output_dir: Path) -> None:
        self.offered: Callable[[], State] = dict
        self.taken: State | None = None
        self._output_dir = output_dir

    def state_dict(self) -> State:
        """Return the state of this learner, at the end of a step."""
        state: State = side_files.plain(self.offered())
        return state

    def load_state_dict(self, state: State) -> None:
        """Take over a member's state.

        Raises:
            JoinLater: There is no whole checkpoint of the epoch before the member's.
        """
        if side_files.checkpoint_epoch(self._output_dir) < state["epoch"] - 1:
            raise JoinLater
        self.taken = state


def resume_reporter(checkpoint: str | Path, **kwargs: Any) -> None:
    """Load ESPnet's reporter and schedulers only, for a learner that has joined.

    Args:
        checkpoint: ESPnet's checkpoint of the epoch before.
        kwargs: The other arguments of ESPnet's `Trainer.resume`.
    """
    nothing = {"model": nn.Module(), "optimizers": [], "scaler": None, "strict": False}
    Trainer.resume(checkpoint=checkpoint, **{**kwargs, **nothing})
