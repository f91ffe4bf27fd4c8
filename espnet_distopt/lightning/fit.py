"""One fit, as one learner sees it: its session, its epochs, and its stop."""

import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerStatus

from espnet_distopt.errors import STOPPED
from espnet_distopt.files.random_state import set_random_state
from espnet_distopt.lightning import own_state
from espnet_distopt.lightning.epoch_schedule import EpochSchedule, remember, take_back
from espnet_distopt.lightning.living import Living, cannot_train_on
from espnet_distopt.lightning.own_state import State
from espnet_distopt.lightning.queued_loading import QueuedBatches
from espnet_distopt.lightning.shared_schedule import SharedSchedule, share
from espnet_distopt.lightning.signals import Signals
from espnet_distopt.session import Session


class Fit:
    """What lives from the beginning of `trainer.fit` to its end.

    An epoch of a fit: the learners step, each by itself (`alone`); they meet at its
    end, and the model holds the consensus; there it stays, for validation, checkpoints
    and whatever looks at the model, until the next epoch begins.

    Args:
        trainer: Lightning's trainer.
        session: this learner's session, which is closed with the fit.
        queues: whether the learners may take batches from a work queue.

    Attributes:
        session: the same.
        living: the collectives of the learners that live; None if the fit ends when a
            learner dies.
        alone: whether learners are between two meetings, so that a collective of
            Lightning's would make them wait for each other.
        begun: the number of batches of this epoch that the learner has begun in this
            process.
        stopping: whether the fit is being stopped within an epoch.
        all_trained: whether all learners have had a batch in the last epoch.
        own: this learner's saved state, until it is taken; None without one.
        signals: those that ask for a stop within the epoch.
    """

    def __init__(
        self, trainer: pl.Trainer, session: Session, queues: bool = False
    ) -> None:
        self.session = session
        survives = queues and session.algorithm.survives
        self.living = Living(session) if survives else None
        self.alone = False
        self.begun = 0
        self.stopping = False
        self.all_trained = True
        self.own: State | None = None
        self.signals = Signals(trainer)
        self._trainer = trainer
        self._met = False
        self._steps = 0
        self._began: State = {}
        self._queued: QueuedBatches | None = None
        self._schedules: list[SharedSchedule] = []
        self._by_epoch: dict[int, EpochSchedule] = {}
        self._resumed: State | None = None

    @property
    def together(self) -> bool:
        """Whether all learners wait for each other in every step."""
        algorithm, learner = self.session.algorithm, self.session.learner
        everybody = len(algorithm.lockstep(learner)) == learner.size
        return algorithm.wants_gradients and algorithm.equal_steps and everybody

    @property
    def error(self) -> BaseException | None:
        """The error that ends the fit, while callbacks deal with it; None without one.

        The others know nothing of it yet, and will not take part in any collective.
        """
        interrupted = self._trainer.state.status == TrainerStatus.INTERRUPTED
        return sys.exception() if interrupted and not self.stopping else None

    # Epochs

    def begin_epoch(self) -> None:
        """Give the learner its own parameters back."""
        self.session.leave_consensus()
        self._met, self.alone = False, True
        strategy = self._trainer.strategy
        self._by_epoch = remember(strategy.lr_scheduler_configs, strategy.optimizers[0])

    def begin_batch(self) -> None:
        """Do what comes before a batch; all batches weigh the same, as with DDP."""
        if not self.alone:
            self.begin_epoch()
        self.begun += 1
        self.session.begin_batch(1)

    def step(self) -> None:
        """Let the algorithm follow an attempted step of the optimizer."""
        self.session.step()

    def meet(self) -> float | None:
        """End the learners' steps, and put the consensus model into the parameters.

        Returns the consensus distance; None if the learners have met already.

        Raises:
            PeerLostError: a learner has died.
        """
        if self._met or self.stopping or self.error is not None:
            return None
        if not self.session.finish():
            self.alone = False
            self.stop()
        self.alone, self._met = False, True
        for schedule in self._schedules:
            schedule.finish_epoch()
        queued, self._queued = self._queued is not None, None
        self._resumed = None
        distance = self.session.enter_consensus()
        # Some learners may have been told to stop by a clock of their own.
        stop, trained = float(self._trainer.should_stop), float(self.begun > 0)
        stop, trained = self.session.means([stop, trained])
        self._check_living(queued)
        self._trainer.should_stop, self.all_trained = stop > 0, trained == 1.0
        return distance

    @property
    def lost(self) -> tuple[int, ...]:
        """The learners that have died, as far as this one knows."""
        learner = self.session.learner
        return tuple(sorted({*range(learner.size)} - {*learner.members.ranks}))

    def _check_living(self, queued: bool) -> None:
        """Raise PeerLostError if a learner is lost that the others cannot do without.

        Args:
            queued: whether the others have trained on the batches of the dead.
        """
        lost = self.lost
        if not lost or (queued and self.living is not None and 0 not in lost):
            return
        raise cannot_train_on(lost)

    # Where the learner is, for its loader

    @property
    def loaders(self) -> int:
        """The number of loaders of training, whose batches Lightning combines."""
        combined = self._trainer.fit_loop._combined_loader
        return len(combined.flattened) if combined is not None else 1

    @property
    def epoch_is_over(self) -> bool:
        """Whether the fit has been resumed after the last batch of its epoch.

        Its checkpoint was saved at the end of a validation: Lightning only ends the
        epoch, and neither trains nor validates.
        """
        progress = self._loop.batch_progress
        trained = progress.current.completed == progress.current.ready
        return bool(self._loop.restarting and progress.is_last_batch and trained)

    def take_position(self) -> State | None:
        """Return where to begin the epoch, once; None for its first batch."""
        self.begun = 0
        own, self.own = self.own, None
        if own is None:
            return None
        if own["position"] is None:
            set_random_state(own["random"])
            return None
        self._resumed = own["position"]
        return {**own["position"], "random": own["random"]}

    def begin_loading(self, random: State) -> None:
        """Note the state of the random numbers before the first batch."""
        self._began = random

    def begin_queue(self, batches: QueuedBatches, done: Sequence[int]) -> None:
        """Note this learner's batches; schedules have made `done` steps; [] if none."""
        self._queued, trainer = batches, self._trainer
        self._schedules = share(trainer.strategy.lr_scheduler_configs)
        done = done or [0] * len(self._schedules)
        for schedule, steps in zip(self._schedules, done, strict=True):
            schedule.begin_epoch(
                batches.queue, lambda: trainer.accumulate_grad_batches, steps
            )

    @property
    def found_no_batch(self) -> bool:
        """Whether the learner has looked for a batch in this epoch, and found none.

        Others have emptied the work queue, or the learner was stopped after its last
        batch, in the process before.
        """
        looked = self._queued is not None or self._resumed is not None
        return self.begun == 0 and looked

    @property
    def _loop(self) -> Any:
        return self._trainer.fit_loop.epoch_loop

    @property
    def _counts(self) -> bool:
        """Whether Lightning resumes after the batch in whose hook it was saved.

        Old versions do not count that batch as completed.
        """
        return hasattr(self._loop, "restarted_on_train_batch_end")

    def _position(self) -> State:
        ready, queued = self._loop.batch_progress.current.ready, self._queued
        had = {"batches": ready, "ended": ready >= self._trainer.num_training_batches}
        if self._resumed is not None and not self.begun:
            # Lightning counts anew where it resumes after the last batch.
            had = {name: self._resumed[name] for name in had}
        return {
            **had,
            "began": self._began,
            "queue": queued.state_dict(self.begun) if queued else None,
            "scheduled": [schedule.done for schedule in self._schedules],
        }

    # Saving

    def capture(self, checkpoint: State) -> State:
        """Return this learner's own state beside a checkpoint of Lightning's."""
        if self.stopping:
            own_state.as_after_a_batch(checkpoint["loops"], self._counts)
            take_back(self._by_epoch, checkpoint)
        position = self._position() if self.stopping else None
        module = self._trainer.lightning_module
        return own_state.capture(self.session, module, checkpoint, position)

    # Stopping

    def stop_if_asked(self) -> None:
        """Stop after a batch, once the learners have agreed to."""
        if self.signals.ask_to_stop:
            self.session.request_stop()
        steps = self.session.learner.steps
        if steps == self._steps or not self.alone:
            return
        self._steps = steps
        if self._loop._num_ready_batches_reached() and not self._counts:
            return  # An old version would validate without the end of the epoch.
        if self.session.agree_to_stop():
            self.alone = False
            self.session.pause()
            self.stop()

    def stop(self) -> NoReturn:
        """Save all learners within the epoch, and end the process.

        Lightning resumes from the checkpoint by `fit(ckpt_path="hpc")`; in a job of
        Slurm that it requeues, by itself.
        """
        self.stopping = True
        trainer = self._trainer
        if self.session.mean(float(self.signals.ask_to_requeue)) > 0:
            requeue = trainer._signal_connector._slurm_sigusr_handler_fn
            requeue(signal.SIGUSR1, None)  # type: ignore[arg-type]
        else:
            path = trainer._checkpoint_connector.hpc_save_path(trainer.default_root_dir)
            trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            logging.warning(
                "the training has stopped within an epoch, and is saved in "
                f"{trainer.default_root_dir}: trainer.fit(ckpt_path='hpc') goes on"
            )
        raise SystemExit(STOPPED)

    def close(self, error: BaseException | None = None) -> None:
        """End the fit: the session and the handlers of signals."""
        try:
            # Unlike `close`, this takes no error that is being handled for the fit's:
            # Lightning's tuner ends a fit by an exception that is none.
            self.session.__exit__(None, error, None)
        finally:
            # Slurm sends SIGTERM to a job that it requeues: Lightning's own handler
            # would wait for the other learners, which may have left.
            if not self.stopping:
                self.signals.give_back()
