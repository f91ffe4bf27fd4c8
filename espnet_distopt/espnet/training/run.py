"""One training run, as one learner sees it.

ESPnet's trainer has class methods only, so it has no place for what outlives an epoch.
A `Run` is that place. `DistoptTrainer.run` makes one, and it travels from method to
method in the trainer options, which ESPnet hands to each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from espnet2.train.reporter import SubReporter
from torch import nn

from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.espnet.training import side_files
from espnet_distopt.espnet.training.handover import Handover
from espnet_distopt.espnet.training.leading import Lead
from espnet_distopt.espnet.training.learner_state import TrainingState, capture
from espnet_distopt.espnet.training.options import DistoptOptions
from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.espnet.training.saved_states import SavedStates
from espnet_distopt.espnet.training.stopping import Stopped
from espnet_distopt.session import Session


class Run:
    """What lives from the start of this process to its end.

    Use it in a `with` statement: leaving it writes the learner's last line and closes
    the session, which tells the other learners if this one has failed.

    Args:
        options: ESPnet's trainer options and the algorithm's.
        rank: The number of this learner; 0 if there is only one.
        size: The number of learners.
        lead: Says whether this learner acts for all.

    Attributes:
        options: The same.
        rank: The same.
        size: The same.
        saved: The saved states of this learner.
        progress: It prints and writes how far the training is.
        session: The algorithm's session. It is None before the first epoch, and in
            stock training.
        stop_signal: The name of the signal that has asked this process to stop, if
            one has.
        lead: Says whether this learner acts for all.
        handover: What a replacement of another learner takes over from this one, and
            what this one has taken over, if it is a replacement.
        reporter: ESPnet's reporter of this epoch's training; None before the first.
        consensus_distance: The distance at the end of the last epoch; None without an
            algorithm.
    """

    def __init__(
        self, options: DistoptOptions, rank: int, size: int, lead: Lead
    ) -> None:
        self.lead = lead
        self.reporter: SubReporter | None = None
        self.handover = Handover(Path(options.output_dir))
        self._members = Members.everybody(size)
        self._restarts = dict.fromkeys(range(size), 0)
        self.options = options
        self.rank, self.size = rank, size
        self._algorithm = options.distopt or "none"
        self.progress = Progress(
            Path(options.output_dir),
            options.max_epoch,
            talks=lead.leads,
            algorithm=self._algorithm,
            learners=size,
        )
        self.session: Session | None = None
        self.stop_signal: str | None = None
        self.consensus_distance: float | None = None
        self._output_dir = Path(options.output_dir)
        self.saved = SavedStates(self._output_dir, rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.leave(error)
        if self.session is not None:
            self.session.close(error)

    def prepare_checkpoint(self) -> None:
        """Repair, on learner 0, a checkpoint that a kill has cut off, and clear up.

        An algorithm that begins anew sets it aside, so that a stop before the first
        epoch's end leaves nothing of another training to resume.
        """
        if self.rank != 0:
            return
        side_files.remove_unfinished(self._output_dir)
        if self.options.distopt is not None and not self.options.resume:
            side_files.set_checkpoint_aside(self._output_dir)
        else:
            side_files.recover_checkpoint(self._output_dir)

    def keep_checkpoint(self) -> None:
        """Copy, where this learner leads, the checkpoint that ESPnet will overwrite."""
        if self.lead.leads:
            side_files.keep_checkpoint(self._output_dir)

    def write_missing_model(self, epoch: int, model: nn.Module) -> None:
        """Write the model of the last epoch, if its writer has died before that."""
        side_files.recover_epoch_model(self._output_dir, epoch, model.state_dict())

    def follow(self) -> None:
        """Follow a change of the members: note it, and let the lowest one lead."""
        if self.session is None:
            return
        driver = self.session.driver
        known = driver.members, self.session.learner.members
        newest = max(*known, self._members, key=lambda members: members.version)
        if newest.version == self._members.version:
            return
        before, restarts = self._members.ranks, self._restarts
        now = {rank: driver.incarnation(rank) for rank in newest.ranks}
        replaced = [r for r in before if r in now and now[r] != restarts[r]]
        self._members, self._restarts = newest, {**restarts, **now}
        if replaced:  # It has died and was replaced within one step of this learner.
            self.progress.follow(newest.without(replaced))
        if replaced or newest.ranks != before:
            self.progress.follow(newest)
        self._follow_lead()

    def _follow_lead(self) -> None:
        leader = min(self._members.ranks, key=lambda r: (self._restarts[r], r))
        self.lead.follow(leader, self._members)
        self.progress.talks = self.lead.leads

    def join(self, model: nn.Module, optimizers: Sequence[Any]) -> int:
        """Join the others in the place of a learner that has died.

        Returns the number of the epoch in which they are.

        Raises:
            InputError: The algorithm cannot be joined.
            PeerLostError: The others have ended before that.
        """
        driver = self.open_session(model, optimizers).driver
        self._members = driver.members
        self._restarts |= {rank: driver.incarnation(rank) for rank in range(self.size)}
        assert self.handover.taken is not None
        self.saved.saves = self.handover.taken["saves"]
        self._follow_lead()
        return int(self.handover.taken["epoch"])

    def open_session(self, model: nn.Module, optimizers: Sequence[Any]) -> Session:
        """Open the session of this run; all learners do so in their first epoch.

        Raises:
            InputError: There are several optimizers, the algorithm cannot train this
                model with this optimizer, or `grad_noise` would make unequal what it
                keeps equal.
        """
        if len(optimizers) != 1:
            raise InputError(f"distopt needs one optimizer, not {len(optimizers)}")
        conf = self.options.distopt_conf
        self.session = session = Session(
            model, optimizers[0], self._algorithm, carries=self.handover, **conf
        )
        # ESPnet adds the noise after the gradients were averaged.
        averages = self.size > 1 and session.algorithm.wants_gradients
        if self.options.grad_noise and averages:
            raise InputError(
                f"grad_noise: each learner would draw its own, and with "
                f"{self._algorithm} learners whose gradients are averaged must stay "
                "equal: leave it out, or use an algorithm that averages models "
                "(local_sgd, bmuf, adpsgd)"
            )
        return session

    def save(self, training: TrainingState, batches: int | None) -> None:
        """Begin to save this learner's state; all learners save equally often.

        Args:
            training: What takes part in this epoch.
            batches: The number of batches of this epoch that this learner has trained
                on; None if the epoch's training is over.
        """
        position = {
            "spent": self.progress.spent(),
            "step": None if batches is None else self.progress.position,
            "of": self.progress.steps,
        }
        state = {**capture(training, batches), **position}
        self.saved.begin(state, training.session)

    def ask_to_stop(self, signal_name: str) -> None:
        """Note that a signal asks this process to stop."""
        self.stop_signal = signal_name

    def stop(self, saved: bool) -> NoReturn:
        """Say that the run stops within the epoch, and end this process.

        Args:
            saved: Whether this learner's state has been saved. If it has not, the next
                run repeats the epoch.
        """
        resume = bool(self.options.resume)
        self.progress.stop(self.stop_signal, saved=saved, resume=resume)
        raise Stopped

    def end_epoch(self, reporter: SubReporter) -> None:
        """Write the figures of an epoch whose validation is over."""
        samples = float(self.progress.samples)
        if self.session is not None:
            self.saved.finish()
            mean = self.session.mean(samples)
            samples = mean * len(self.session.learner.members.ranks)
            self.saved.complete()
        self.follow()
        self.progress.end_epoch(reporter, samples)
        if self.reporter is not None:
            self.lead.write_epoch(self.reporter, reporter)

    def confirm_end(self) -> None:
        """Make sure that the learner which writes the last files has lived to do so.

        Raises:
            PeerLostError: It has died after the last epoch.
        """
        if self.session is None or not self.session.algorithm.survives:
            return
        writer = self.lead.leader
        if writer not in self.session.barrier().ranks:
            raise PeerLostError(
                f"learner {writer} has died while it wrote the last checkpoint: start "
                "the same command again to write it"
            )


@dataclass
class RunOptions(DistoptOptions):
    """The trainer options during a run.

    Attributes:
        run: The run, which ESPnet so hands to every method of the trainer.
    """

    run: Run
