"""Lightning's checkpoints, with what each learner needs beside them (`own_state`)."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_warn

from espnet_distopt.errors import PeerLostError
from espnet_distopt.lightning import own_state
from espnet_distopt.lightning.apart import ApartStrategy

State = dict[str, Any]


class CheckpointStrategy(ApartStrategy):
    """A strategy whose learners save and load their own parts beside a checkpoint.

    The checkpoint itself holds the consensus model. It is loaded before the session is
    open: this learner's part waits in `_own` for the fit that takes it over.

    Attributes:
        algorithm: the name of the algorithm.
    """

    _own: State | None = None

    def lightning_module_state_dict(self) -> State:
        """Return the state of the consensus model; all learners call this."""
        if self._fit is not None:
            self._fit.meet()
        return super().lightning_module_state_dict()

    def save_checkpoint(
        self, checkpoint: State, filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Save the checkpoint, and what each learner needs beside it.

        When an error ends the fit, learner 0 saves its own model alone; and nothing if
        another learner is lost, because an average may have been half done.
        """
        fit = self._fit
        error = fit.error if fit is not None else None
        if isinstance(error, PeerLostError):
            rank_zero_warn(
                f"{filepath} is not saved: the model may hold half an average, because "
                "a learner is lost"
            )
            return
        if fit is None or error or not own_state.is_whole(checkpoint):
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        stamp = {
            "save": time.time_ns(),
            "learners": self.world_size,
            "algorithm": self.algorithm,
        }
        checkpoint[own_state.KEY], filepath = self.broadcast((stamp, filepath))
        own = fit.capture(checkpoint)
        self.checkpoint_io.save_checkpoint(
            own, own_state.file(filepath, self.global_rank), storage_options
        )
        # The checkpoint is written last: it never lacks the learners' files.
        self.barrier()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, *args: Any, **kw: Any
    ) -> State:
        """Return the checkpoint, with this learner's own parts if all have theirs."""
        checkpoint: State = super().load_checkpoint(checkpoint_path, *args, **kw)
        assert self.lightning_module is not None
        fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        stamp = checkpoint.get(own_state.KEY)
        if not fitting or stamp is None:
            return checkpoint
        path, own = own_state.file(checkpoint_path, self.global_rank), {}
        if os.path.exists(path):
            own = self.checkpoint_io.load_checkpoint(path, *args, **kw)
        same = own_state.fits(own, checkpoint) and stamp["learners"] == self.world_size
        if self.reduce_boolean_decision(same):
            own_state.merge(own, checkpoint)
            self._own = own
        else:
            rank_zero_warn(
                f"there are no states of {self.world_size} learners beside "
                f"{checkpoint_path}: they go on from the consensus model"
            )
        return checkpoint

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove the checkpoint with the learners' files."""
        super().remove_checkpoint(filepath)
        super().remove_checkpoint(own_state.folder(filepath))

    def load_model_state_dict(
        self, checkpoint: Mapping[str, Any], *args: Any, **kw: Any
    ) -> None:
        """Load the model; within a fit, as after a tuner's search, begin anew there."""
        fit = self._fit
        if fit is not None:
            fit.session.leave_consensus()
        super().load_model_state_dict(checkpoint, *args, **kw)
        if fit is not None:
            fit.session.restart_from_model()

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer's state, then this learner's own, if there is one."""
        super().load_optimizer_state_dict(checkpoint)
        if self._fit is not None and self._fit.own is not None:
            assert self.lightning_module is not None
            own_state.restore(self._fit.own, self._fit.session, self.lightning_module)
