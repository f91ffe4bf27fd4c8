"""One epoch that an algorithm trains: what comes around the steps of ESPnet's loop.

It resumes the learner, steps the session, forms the consensus model and saves the
learner.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.train.reporter import SubReporter
from torch import nn

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.epoch import Epoch
from espnet_distopt.espnet.training.epoch_batches import EpochBatches
from espnet_distopt.espnet.training.learner_state import (
    Position,
    State,
    TrainingState,
    carried,
    restore_after,
    restore_carried,
    restore_within,
)
from espnet_distopt.espnet.training.loading import Batch
from espnet_distopt.espnet.training.queued_batches import QueuedBatches
from espnet_distopt.espnet.training.run import Run

SEED_STRIDE = 1000003
"""The distance between the seeds of two learners, so that their dropout masks differ.
The seed also grows by one an epoch, so this is larger than any number of epochs."""


class DistoptEpoch(Epoch):
    """An epoch that an algorithm trains.

    Making the first one of a run opens the session and resumes this learner.

    Args:
        run: The run that it belongs to.
        model: The model, without DDP around it.
        reporter: ESPnet's reporter of this epoch's training.
        optimizers: ESPnet's optimizers; there must be one.
        schedulers: ESPnet's learning-rate schedulers; there must be one, or None.
        scaler: ESPnet's gradient scaler, or None without mixed precision.
        batches: The number of batches of the epoch; None if it is not known.

    Raises:
        InputError: The algorithm cannot train this model with these optimizers, or the
            saved state cannot be read.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        reporter: SubReporter,
        optimizers: Sequence[Any],
        schedulers: Sequence[Any],
        scaler: Any,
        batches: int | None,
    ) -> None:
        super().__init__(run, reporter, schedulers)
        first = run.session is None
        self._session = session = run.session or run.open_session(model, optimizers)
        self._training = TrainingState(
            session, model, reporter, optimizers[0], schedulers[0], scaler
        )
        self._between: dict[str, float] = {}
        run.reporter = reporter
        joined, run.handover.taken = run.handover.taken, None
        if not first and joined is None and run.lead.leads:
            run.write_missing_model(reporter.get_epoch() - 1, model)
        # Adapters (LoRA) take out of their frozen weights here what validation has
        # put in. That was the consensus model's, which the parameters still hold.
        model.train()
        if first:
            self._resume(batches)
        elif joined is not None:
            self._take_over(joined)
        run.handover.offered = self._carried
        session.leave_consensus()
        if run.rank > 0:
            seed = run.options.seed + reporter.get_epoch() + SEED_STRIDE * run.rank
            set_all_random_seed(seed % 2**32)

    def _resume(self, batches: int | None) -> None:
        """Go on from a saved state within this epoch or after the last, if any."""
        epoch = self.reporter.get_epoch()
        self.run.saved.forget_other_runs(epoch, self.run.options.resume)
        within = self.run.saved.within(self._session, epoch, batches)
        if within is not None:
            restore_within(self._training, within)
            self.start = Position.of(within)
        elif epoch > 1:
            after = self.run.saved.after(self._session, epoch - 1)
            if after is not None:
                restore_after(self._training, after)

    def _carried(self) -> State:
        return {**carried(self._training), "saves": self.run.saved.saves}

    def _take_over(self, joined: State) -> None:
        """Begin where a member was within this epoch when this learner joined.

        Raises:
            InputError: ESPnet begins another epoch.
        """
        epoch = self.reporter.get_epoch()
        if epoch != joined["epoch"]:
            raise InputError(
                f"learner {self.run.rank} has joined epoch {joined['epoch']}, and the "
                f"checkpoint in {self.run.options.output_dir} begins epoch {epoch}: "
                "leave checkpoint.pth alone while others train"
            )
        self.start = restore_carried(self._training, joined)

    def batches(self, iterator: Iterable[Batch] | EpochBatches) -> Iterable[Batch]:
        """Return the batches that are left, from a work queue where there is one."""
        if not isinstance(iterator, EpochBatches):
            return super().batches(iterator)
        queued = QueuedBatches(
            iterator,
            self._session,
            self._training.scheduler,
            self.run.options.accum_grad,
            self.start.queued,
        )
        self._training = replace(self._training, queued=queued)
        self.schedulers = [queued.scheduler]
        return queued

    def begin_steps(self) -> None:
        """Note the time that was spent between the epochs."""
        self._between = dict(self._session.driver.spent)

    def begin_batch(self, weight: int) -> None:
        """Tell the session by what the gradients of a batch are weighted."""
        self._session.begin_batch(weight)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return the context of a batch after which the optimizer does not step."""
        return self._session.no_sync()

    def step(self, number: int) -> dict[str, float]:
        """Let the algorithm make its step; return its figures."""
        self._session.step()
        self.run.follow()
        figures = self._session.metrics()
        queued = self._training.queued
        position = number if queued is None else queued.queue.step
        own = without(figures, self._between)
        self.run.progress.step(position, self.reporter, own)
        self._between = {}
        return figures

    def stop_if_asked(self, batches: int) -> None:
        """Save this learner and end the process, once the learners agree to stop."""
        if self.run.stop_signal is not None:
            self._session.request_stop()
        if self._session.agree_to_stop():
            self._session.pause()
            self._stop(batches)

    def _stop(self, batches: int) -> NoReturn:
        """Save this learner, which has paused within the epoch, and end the process."""
        self.run.save(self._training, batches)
        self.run.saved.finish()
        self._session.mean(0.0)  # No learner leaves while others need its store.
        self.run.saved.complete()
        self.run.stop(saved=True)

    def end(self, all_steps_are_invalid: bool) -> bool:
        """Form the consensus model and save this learner.

        Returns whether all steps of all learners were invalid. ESPnet then ends the
        run, and one learner that left alone would make the others wait for it.
        """
        super().end(all_steps_are_invalid)
        session, batches = self._session, self.run.progress.batches
        if not session.finish():
            # The gradients accumulated since the last step are lost, so its batches
            # count as not trained on.
            left = (batches - self.start.batches) % self.run.options.accum_grad
            self._stop(batches - left)
        self.run.follow()
        if self._training.queued is not None:
            self._training.queued.finish()
            self._report_lost(self._training.queued, batches)
        self.form_consensus()
        self.run.save(self._training, None)
        trained = batches > self.start.batches
        return nobody_stepped(session.mean, trained, not all_steps_are_invalid)

    def _report_lost(self, queued: QueuedBatches, batches: int) -> None:
        """Log what learners that have died had of this epoch's batches."""
        if self._session.learner.members.version == 0:
            return
        begun, taken = queued.lost(batches)
        if self.run.lead.leads and begun + taken > 0:
            logging.warning(
                f"epoch {self.reporter.get_epoch()}: learners that have died had begun "
                f"{begun:.0f} of {queued.queue.items} batches, which are not trained "
                f"on again, and had taken {taken:.0f} that nobody has trained on"
            )

    def form_consensus(self) -> None:
        """Put the consensus model into the parameters, for validation."""
        self.run.consensus_distance = self._session.enter_consensus()


def nobody_stepped(
    mean: Callable[[float], float], trained: bool, stepped: bool
) -> bool:
    """Return whether learners had batches in an epoch, and none of them a valid step.

    A learner without a batch says nothing about the steps of the others.

    Args:
        mean: The mean of a number over all learners, which they compute together.
        trained: Whether this learner had a batch.
        stepped: Whether a step of its loop was valid.
    """
    return mean(float(trained)) > 0 and mean(float(trained and stepped)) == 0


def without(figures: dict[str, float], between: dict[str, float]) -> dict[str, float]:
    """Return `figures` without the seconds that were spent `between` two epochs."""
    own = {key: figures[key] - s for key, s in between.items() if key != "bytes"}
    return {**figures, **own}
