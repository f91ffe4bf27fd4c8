"""One fit, as one learner sees it: its session, its epochs, its stop, and its state.

Lightning's checkpoint holds the consensus model, and loads in plain Lightning. What
differs between learners goes to `distopt/NAME/learner{rank}.ckpt` beside it. Both have
a stamp, so that files of different saves are never taken for those of one.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerStatus

from espnet_distopt.distributed.stop_signals import SIGNALS, Stopped, on_stop_signal
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.files.tensors import plain
from espnet_distopt.lightning import schedules
from espnet_distopt.lightning.collectives import (
    Living,
    cannot_train_on,
    shared_metrics,
)
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

State = dict[str, Any]

KEY = "distopt"
"""Where a checkpoint holds the stamp; plain Lightning ignores it."""

_OF_TRAINER = ("loops", "optimizer_states", "lr_schedulers", "MixedPrecision")
"""The parts of Lightning's checkpoint that differ between learners."""


class Signals:
    """Handles signals in the place of Lightning, which would stop one learner alone."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._requeue: int | None = None
        self._received: int | None = None
        self._listening = ExitStack()

    @property
    def ask_to_stop(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    @property
    def ask_to_requeue(self) -> bool:
        """Whether it is the one on which Lightning requeues a job of Slurm."""
        return self.ask_to_stop and self._received == self._requeue

    def listen(self, requeue: int | None) -> None:
        """Handle the signals that ask for a stop, and `requeue`.

        That is the signal on which Lightning requeues the job; None: on none.
        """
        self._requeue = requeue
        numbers = {*SIGNALS, requeue or signal.SIGTERM}
        self._listening.enter_context(on_stop_signal(self._receive, numbers))

    def _receive(self, name: str) -> None:
        self._received = number = signal.Signals[name]
        launcher = self._trainer.strategy.launcher
        if launcher is not None and hasattr(launcher, "procs"):
            # A terminal sends Ctrl-C to all of them, and a second one would kill.
            launcher.kill(signal.SIGTERM if number == signal.SIGINT else number)

    def give_back(self, stopped: bool) -> None:
        """Let the handlers of before handle the signals; ignore them after a stop.

        Slurm sends SIGTERM to a job that it requeues: Lightning's own handler would
        wait for the other learners, which may have left.
        """
        end = Stopped() if stopped else None
        self._listening.__exit__(type(end) if end else None, end, None)


class Fit:
    """What lives from the beginning of `trainer.fit` to its end.

    An epoch of a fit: the learners step, each by itself (`alone`); they meet at its
    end, and the model holds the consensus; there it stays, for validation, checkpoints
    and whatever looks at the model, until the next epoch begins.

    Args:
        trainer: Lightning's trainer.
        session: this learner's session, which is closed with the fit.
        queues: whether the learners may take batches from a work queue.
        own: this learner's saved state, as `capture` has returned it; None without one.

    Attributes:
        living: the collectives of those who live; None: the fit ends with a death.
        alone: whether learners are between two meetings, so that a collective of
            Lightning's would make them wait for each other.
        began: the state of the random numbers before the first batch of this epoch.
        begun: so many batches of this epoch the learner has begun in this process.
        stopping: whether the fit is being stopped within an epoch.
        all_trained: whether all learners have had a batch in the last epoch.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        session: Session,
        queues: bool = False,
        own: State | None = None,
    ) -> None:
        self.session = session
        survives = queues and session.algorithm.survives
        self.living = Living(session) if survives else None
        self.alone = False
        self.begun = 0
        self.stopping = False
        self.all_trained = True
        self._own = own
        self.signals = Signals(trainer)
        self._metrics = ExitStack()
        module = trainer.lightning_module
        self._metrics.enter_context(
            shared_metrics(module, self.living, lambda: self.is_apart)
        )
        self._trainer = trainer
        self._met = False
        self._steps = 0
        self.began: State = {}
        self._left: Callable[[int], State] | None = None
        self._by_step: list[schedules.StepSchedule] = []
        self._by_epoch: dict[int, schedules.EpochSchedule] = {}
        self._resumed: State | None = None

    @property
    def together(self) -> bool:
        """Whether all learners wait for each other in every step."""
        algorithm, learner = self.session.algorithm, self.session.learner
        everybody = len(algorithm.lockstep(learner)) == learner.size
        return algorithm.wants_gradients and algorithm.equal_steps and everybody

    @property
    def is_apart(self) -> bool:
        """Whether no collective of Lightning's may run now."""
        return self.error is not None or (self.alone and not self.together)

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
        configs, optimizer = strategy.lr_scheduler_configs, strategy.optimizers[0]
        self._by_epoch = schedules.remember(configs, optimizer)

    def begin_batch(self) -> None:
        """Do what comes before a batch; all batches weigh the same, as with DDP."""
        if not self.alone:
            self.begin_epoch()
        self.begun += 1
        self.session.begin_batch(1)

    def meet(self) -> float | None:
        """End the learners' steps, and put the consensus model into the parameters.

        Returns the consensus distance; None if the learners have met already.
        """
        if self._met or self.stopping or self.error is not None:
            return None
        if not self.session.finish():
            self.alone = False
            self.stop()
        self.alone, self._met = False, True
        for schedule in self._by_step:
            schedule.finish_epoch()
        queued, self._left = self._left is not None, None
        self._resumed = None
        distance = self.session.enter_consensus()
        # Some learners may have been told to stop by a clock of their own.
        stop, trained = float(self._trainer.should_stop), float(self.begun > 0)
        stop, trained = self.session.means([stop, trained])
        lost = self.lost
        # Others have trained on the batches of the dead, if there is a work queue.
        if lost and not (queued and self.living is not None and 0 not in lost):
            raise cannot_train_on(lost)
        self._trainer.should_stop, self.all_trained = stop > 0, trained == 1.0
        return distance

    @property
    def lost(self) -> tuple[int, ...]:
        """The learners that have died, as far as this one knows."""
        learner = self.session.learner
        return tuple(sorted({*range(learner.size)} - {*learner.members.ranks}))

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
        own, self._own = self._own, None
        if own is None:
            return None
        if own["position"] is None:
            set_random_state(own["random"])
            return None
        self._resumed = own["position"]
        return {**own["position"], "random": own["random"]}

    def begin_queue(
        self, queue: WorkQueue, left: Callable[[int], State], done: Sequence[int]
    ) -> None:
        """Let the schedules follow the work queue of an epoch.

        Args:
            queue: the work queue.
            left: returns what is left of it, for the number of batches begun here.
            done: the steps that each schedule by step has made; [] if none.
        """
        self._left, trainer = left, self._trainer
        self._by_step = schedules.share(trainer.strategy.lr_scheduler_configs)
        done = done or [0] * len(self._by_step)
        for schedule, steps in zip(self._by_step, done, strict=True):
            schedule.begin_epoch(queue, lambda: trainer.accumulate_grad_batches, steps)

    @property
    def found_no_batch(self) -> bool:
        """Whether the learner has looked for a batch in this epoch, and found none.

        Others have emptied the work queue, or the learner was stopped after its last
        batch, in the process before.
        """
        looked = self._left is not None or self._resumed is not None
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
        ready = self._loop.batch_progress.current.ready
        had = {"batches": ready, "ended": ready >= self._trainer.num_training_batches}
        if self._resumed is not None and not self.begun:
            # Lightning counts anew where it resumes after the last batch.
            had = {name: self._resumed[name] for name in had}
        return {
            **had,
            "began": self.began,
            "queue": self._left(self.begun) if self._left is not None else None,
            "scheduled": [schedule.done for schedule in self._by_step],
        }

    # Saving

    def capture(self, checkpoint: State) -> State:
        """Return what this learner needs beside a checkpoint; nothing is in flight.

        The checkpoint is what Lightning saves, with the stamp. If the fit is being
        stopped, it is changed into that of a stop after a batch.
        """
        position = None
        if self.stopping:
            _as_after_a_batch(checkpoint["loops"], self._counts)
            schedules.take_back(self._by_epoch, checkpoint)
            position = self._position()
        buffers = self._trainer.lightning_module.named_buffers()
        of_trainer = {k: checkpoint[k] for k in _OF_TRAINER if k in checkpoint}
        return {
            KEY: checkpoint[KEY],
            "trainer": plain(of_trainer),
            "session": self.session.state_dict(),
            "buffers": {name: b.detach().clone() for name, b in buffers},
            "position": position,
            "random": random_state(),
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Give the learner its saved parts back, if it has any.

        The optimizer's state must have been loaded before.
        """
        if self._own is None:
            return
        self.session.load_state_dict(self._own["session"])
        buffers = dict(self._trainer.lightning_module.named_buffers())
        for name, saved in self._own["buffers"].items():
            buffers[name].copy_(saved)

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
            logging.getLogger(__name__).warning(
                "the training has stopped within an epoch, and is saved in "
                f"{trainer.default_root_dir}: trainer.fit(ckpt_path='hpc') goes on"
            )
        raise Stopped

    def close(self, error: BaseException | None = None) -> None:
        """End the fit: the session and the handlers of signals."""
        self._metrics.close()
        try:
            # Unlike `close`, this takes no error that is being handled for the fit's:
            # Lightning's tuner ends a fit by an exception that is none.
            self.session.__exit__(None, error, None)
        finally:
            self.signals.give_back(self.stopping)


class EpochEnds(pl.Callback):
    """Comes before all other callbacks, so that they find the consensus model."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._dividing = fit.session.learner.size

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begin the epoch."""
        self._fit.begin_epoch()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Stop, if that was asked for."""
        self._fit.stop_if_asked()

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Form the consensus model for validation, which those who live divide."""
        if trainer.sanity_checking:
            return
        self._meet(trainer)
        living = self._fit.living
        if living is not None and living.place[1] < self._dividing:
            self._dividing = living.place[1]
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop._combined_loader = None
            loop.setup_data()
            loop.reset()

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Form the consensus model, where there was no validation."""
        if self._fit.found_no_batch:
            self._fit.begin_epoch()
            end_without_batches(trainer)
        self._meet(trainer)

    def _meet(self, trainer: pl.Trainer) -> None:
        distance = self._fit.meet()
        if distance is not None:
            trainer.strategy.consensus_distance = distance  # type: ignore[attr-defined]


def end_without_batches(trainer: pl.Trainer) -> None:
    """Do at the end of an epoch what Lightning does after its last batch.

    A learner that has found no batch has had no last one. The others wait for it in
    validation.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.is_last_batch = True
    loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    if loop._should_check_val_epoch():
        trainer.validating = True
        loop.val_loop.run()
        trainer.training = True


# The state of a learner beside Lightning's checkpoint


def folder_of_learners(checkpoint: str | os.PathLike[str]) -> str:
    """Return the folder of the learners' files of a checkpoint."""
    path = os.fspath(checkpoint)
    path = os.path.realpath(path) if os.path.islink(path) else path
    return os.path.join(os.path.dirname(path), "distopt", os.path.basename(path))


def file_of_learner(checkpoint: str | os.PathLike[str], rank: int) -> str:
    """Return the path of a learner's file of a checkpoint."""
    return os.path.join(folder_of_learners(checkpoint), f"learner{rank}.ckpt")


def _as_after_a_batch(loops: State, counts: bool) -> None:
    """Make the progress of a stop that of a stop in the hook after a batch.

    A learner may be stopped after its last batch, or learn only at the epoch's end that
    others have stopped. It must go on within the epoch, as they do: it may find
    batches, and it has not validated. Lightning `counts` the batch of the hook as
    completed when it resumes; old versions do not.
    """
    fit = loops["fit_loop"]
    batches, epochs = fit["epoch_loop.batch_progress"], fit["epoch_progress"]
    batches["is_last_batch"] = False
    open_batches = int(counts and batches["current"]["ready"] > 0)
    for part in ("total", "current"):
        batches[part]["completed"] = batches[part]["ready"] - open_batches
        epochs[part]["processed"] = epochs[part]["started"] - 1
