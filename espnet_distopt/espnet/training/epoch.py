"""One epoch: what comes around the steps of ESPnet's loop, and its validation.

`Epoch.train_by` tells it from the beginning to the end; ESPnet's loop runs in its midst
and reads `Epoch.__iter__`. The loop has no hook that runs after a step. But it asks its
iterator for the next batch once it is done with the last one, and so the code after a
`yield` runs once after each attempted step, also after one whose update was skipped.
"""

import logging
import math
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from contextlib import nullcontext
from typing import Any, NoReturn, cast

from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.train.reporter import SubReporter, WeightedAverage
from torch import nn

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.batches import (
    Batch,
    EpochBatches,
    QueuedBatches,
    length,
    loss_weight,
    without_first,
)
from espnet_distopt.espnet.training.checkpoints import recover_epoch_model
from espnet_distopt.espnet.training.run import Run
from espnet_distopt.espnet.training.saving import Position, State, TrainingState
from espnet_distopt.files.random_state import set_random_state
from espnet_distopt.session import Session, steps_alone

SEED_STRIDE = 1000003
"""The distance between the seeds of two learners, so that their dropout masks differ.
The seed also grows by one an epoch, so this is larger than any number of epochs."""

_SHARE_LEFT = "; nobody trains on the rest of its share of this epoch"
"""What is added to the line on a loss where the living divide the next epoch anew."""


class Epoch:
    """An epoch of a run, and the iterator that ESPnet's training loop reads.

    The first one of a run opens the session. Without an algorithm there is none, and
    ESPnet trains by itself, alone or by DDP. With one, the model has no DDP around it.

    Attributes:
        schedulers: What the training loop is to step.
        start: Where this learner begins.
        left: The batches that this learner still has to train on.
        training: What takes part in the training by an algorithm; None without one.

    Raises:
        InputError: The algorithm cannot train this model with these optimizers.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        reporter: SubReporter,
        optimizers: Sequence[Any],
        schedulers: Sequence[Any],
        scaler: Any,
    ) -> None:
        self.run = run
        self.schedulers = schedulers
        self.start = Position()
        self.left: Iterable[Batch] = ()
        self.training: TrainingState | None = None
        self._reporter, self._number = reporter, reporter.get_epoch()
        self._between: dict[str, float] = {}
        self._is_first = run.session is None
        if run.options.distopt is not None:
            session = run.session or run.open_session(model, optimizers)
            self.training = TrainingState(
                session, model, reporter, optimizers[0], schedulers[0], scaler
            )

    def train_by(
        self, loop: Callable[["Epoch"], bool], iterator: Iterable[Batch] | EpochBatches
    ) -> bool:
        """Train on this learner's batches, and form the consensus model.

        Args:
            loop: ESPnet's training loop, over this epoch; it returns whether no step
                had a finite gradient.
            iterator: The batches of the epoch, as ESPnet's iterator factory gives them.

        Returns:
            Whether all steps of all learners were invalid, so that ESPnet ends the run.
        """
        batches, training, progress = length(iterator), self.training, self.run.progress
        accum_grad = self.run.options.accum_grad
        if batches is not None and batches < accum_grad:
            raise InputError(
                f"accum_grad: {accum_grad} batches make a step, and an epoch has only "
                f"{batches} on each learner: lower accum_grad, or batch_size"
            )
        if training is not None:
            self._begin(training, batches)
        start = self.start
        progress.begin_epoch(self._number, batches, start.step, start.spent)
        if training is not None and start.is_trained:
            self._form_consensus(training)
            return False
        if not isinstance(iterator, EpochBatches):
            self.left = without_first(iterator, start.batches)
        elif training is not None and steps_alone(self.run.options.distopt):
            training.queued = queued = QueuedBatches(
                iterator, training.session, training.scheduler, accum_grad, start.queued
            )
            self.left, self.schedulers = queued, [queued.scheduler]
        else:
            assert training is not None  # Without an algorithm, ESPnet divides them.
            session = training.session
            session.of_lost_share = _SHARE_LEFT
            self.left = without_first(_share(iterator, session.learner), start.batches)
        no_step_was_valid = loop(self)
        progress.end_training(self._reporter)
        if training is None:
            return no_step_was_valid
        return self._end(training, not no_step_was_valid)

    def _begin(self, training: TrainingState, batches: int | None) -> None:
        """Go on from a saved state, or from a member's if this learner has joined."""
        run = self.run
        run.reporter = self._reporter
        joined = run.handover.taken is not None
        if run.lead.leads and not self._is_first and not joined:
            # The learner that led the epoch before may have died before it wrote this.
            state = training.model.state_dict()
            recover_epoch_model(run.output_dir, self._number - 1, state)
        # Adapters (LoRA) take out of their frozen weights here what validation has
        # put in. That was the consensus model's, which the parameters still hold.
        training.model.train()
        if joined:
            self.start = run.handover.take_over(training)
        elif self._is_first:
            self.start = run.saved.resume(training, batches, run.options.resume)
        run.handover.offered = self._carried
        training.session.leave_consensus()
        if run.rank > 0:
            seed = run.options.seed + self._number + SEED_STRIDE * run.rank
            set_all_random_seed(seed % 2**32)

    def _carried(self) -> State:
        assert self.training is not None
        return {**self.training.carried(), "saves": self.run.saved.saves}

    def __len__(self) -> int:
        return len(cast(Sized, self.left))

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield batches to ESPnet's loop, and step after each `accum_grad`.

        Gradients are averaged once for each step, beside its last backward pass.

        The algorithm's figures appear in ESPnet's report one step late, because ESPnet
        has closed the report of a step by the time they are known.
        """
        progress, start = self.run.progress, self.start
        session = self.training.session if self.training is not None else None
        figures: dict[str, float] = {}
        batches = iter(self.left)
        if start.random is not None:
            # This comes after `iter`, since a data loader draws a random number there.
            set_random_state(start.random)
        if session is not None:
            self._between = dict(session.driver.spent)
        self._stop_if_asked(start.batches)
        for number, (names, batch) in enumerate(batches, start.batches + 1):
            if figures:
                # After the last batch this would open the report of a further step.
                self._reporter.register(figures)
                figures = {}
            # ESPnet's loop counts from where it begins.
            count = number - start.batches
            steps = count % self.run.options.accum_grad == 0
            if session is not None:
                session.begin_batch(loss_weight((names, batch)))
            with nullcontext() if session is None or steps else session.no_sync():
                yield names, batch
            progress.samples += len(names)
            progress.batches = number
            if steps:
                figures = self._step(number)
                self._stop_if_asked(number)

    def _step(self, number: int) -> dict[str, float]:
        """Let the algorithm follow an attempted step; return its figures."""
        progress, training = self.run.progress, self.training
        if training is None:
            progress.step(number, self._reporter, {})
            return {}
        training.session.step()
        self.run.follow()
        figures = training.session.metrics()
        queued = training.queued
        position = number if queued is None else queued.queue.step
        progress.step(position, self._reporter, without(figures, self._between))
        self._between = {}
        return figures

    def _stop_if_asked(self, batches: int) -> None:
        """End the process if that is asked; where learners save, once all agree."""
        run, training = self.run, self.training
        if training is None:
            if run.stop_signal is not None:
                run.stop(saved=False)
            return
        if run.stop_signal is not None:
            training.session.request_stop()
        if training.session.agree_to_stop():
            training.session.pause()
            self._stop(training, batches)

    def _stop(self, training: TrainingState, batches: int) -> NoReturn:
        """Save this learner, which has paused within the epoch, and end the process."""
        self._save(training, batches)
        self.run.saved.write()
        training.session.mean(0.0)  # No learner leaves while others need its store.
        self.run.stop(saved=True)

    def _end(self, training: TrainingState, stepped: bool) -> bool:
        """Form the consensus model and save this learner.

        Returns whether all steps of all learners were invalid. ESPnet then ends the
        run, and one learner that left alone would make the others wait for it.
        """
        session, batches = training.session, self.run.progress.batches
        if not session.finish():
            # The gradients accumulated since the last step are lost, so its batches
            # count as not trained on.
            left = (batches - self.start.batches) % self.run.options.accum_grad
            self._stop(training, batches - left)
        self.run.follow()
        if training.queued is not None:
            training.queued.finish()
            self._report_lost(training.queued, batches)
        self._form_consensus(training)
        self._save(training, None)
        trained = batches > self.start.batches
        return nobody_stepped(session.mean, trained, stepped)

    def _report_lost(self, queued: QueuedBatches, batches: int) -> None:
        """Log what learners that have died had of this epoch's batches."""
        begun, taken = map(round, queued.lost(batches))
        of = f"of {queued.queue.items} batches"
        counted = "of which the last one of each may be lost"
        lost = [f"had begun {begun} {of}, {counted}"] * (begun > 0)
        if taken > 0:
            lost.append(f"had taken {taken} {of} that nobody has trained on")
        if self.run.lead.leads and lost:
            what = " and ".join(lost)
            logging.warning(f"epoch {self._number}: learners that have died {what}")

    def _form_consensus(self, training: TrainingState) -> None:
        """Put the consensus model into the parameters, for validation."""
        self.run.consensus_distance = training.session.enter_consensus()

    def _save(self, training: TrainingState, batches: int | None) -> None:
        """Begin to save this learner's state; all learners save equally often."""
        progress = self.run.progress
        step = None if batches is None else progress.position
        position = {"spent": progress.spent(), "step": step, "of": progress.steps}
        self.run.saved.stage({**training.capture(batches), **position})


def nobody_stepped(
    mean: Callable[[float], float], trained: bool, stepped: bool
) -> bool:
    """Return whether learners had batches in an epoch, and none of them a valid step.

    A learner without a batch says nothing about the steps of the others.
    """
    return mean(float(trained)) > 0 and mean(float(trained and stepped)) == 0


def without(figures: dict[str, float], between: dict[str, float]) -> dict[str, float]:
    """Return `figures` without the seconds that were spent `between` two epochs."""
    own = {key: figures[key] - s for key, s in between.items() if key != "bytes"}
    return {**figures, **own}


# Validation


Validate = Callable[[Iterable[Batch], SubReporter], None]
"""Validates on batches of this learner's, and registers their figures."""


def validate_together(
    validate: Validate,
    session: Session,
    iterator: Iterable[Batch] | EpochBatches,
    reporter: SubReporter,
) -> None:
    """Validate on all batches, and register the mean figures of all living learners.

    Stock ESPnet averages the figures of every batch over all processes, which would
    never end once a process has died. Here each learner validates its share of every
    batch by itself, and at the end the living average their figures once. If one of
    them has died meanwhile, the others divide the batches anew and repeat the
    validation. A learner's share of batches that ESPnet has divided itself is lost with
    the learner.

    All learners call this, after a collective on which they have agreed who lives. The
    figures become those of stock ESPnet, up to rounding.
    """
    epoch, count = reporter.get_epoch(), reporter.get_total_count()
    while True:
        living = session.learner.members.ranks
        own = SubReporter(reporter.key, epoch, count)
        validate(_share(iterator, session.learner), own)
        means = _mean_figures(own, session)
        if session.learner.members.ranks == living:
            break
        if not isinstance(iterator, EpochBatches):
            logging.warning(f"epoch {epoch}: validated without a dead learner's share")
            break
        logging.warning(f"epoch {epoch}: a learner has died; validation is repeated")
    for key, (value, weight) in means.items():
        reporter.register({key: value}, weight)
    reporter.next()
    reporter.total_count = own.total_count


def _share(
    iterator: Iterable[Batch] | EpochBatches, learner: Learner
) -> Iterable[Batch]:
    """Return a learner's share, which the living divide where ESPnet has not."""
    if not isinstance(iterator, EpochBatches):
        return iterator
    living = learner.members.ranks
    return iterator.share(living.index(learner.rank), len(living))


def _mean_figures(own: SubReporter, session: Session) -> dict[str, tuple[float, float]]:
    """Return each figure's mean over the living, and the weight that it stands for."""
    names = sorted(own.stats)
    if session.means([len(names)]) != [len(names)]:
        raise InputError(
            f"learner {session.learner.rank} has {len(names)} figures of validation, "
            "and others have another number: give all learners batches to validate on"
        )
    sums: list[float] = []
    for name in names:
        pairs = [_weighted(value) for value in own.stats[name]]
        finite = [(v, w) for v, w in pairs if math.isfinite(v) and math.isfinite(w)]
        sums += [sum(v * w for v, w in finite), sum(w for _, w in finite)]
    means = session.means(sums)
    size = len(session.learner.members.ranks)
    return {
        name: (value / weight if weight else math.nan, weight * size)
        for name, value, weight in zip(names, means[::2], means[1::2], strict=True)
    }


def _weighted(value: object) -> tuple[float, float]:
    """Return a figure and its weight; figures without one count alike."""
    if isinstance(value, WeightedAverage):
        return float(value.value), float(value.weight)
    return float(value.value), 1.0  # type: ignore[attr-defined]
