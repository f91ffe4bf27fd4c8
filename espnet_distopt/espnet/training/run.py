"""One training run, as one learner sees it.

ESPnet's trainer has class methods only, so it has no place for what outlives an epoch.
A `Run` is that place. `DistoptTrainer.run` makes one, and it travels from method to
method in the trainer options, which ESPnet hands to each of them.

What ESPnet ties to rank 0 (the log, TensorBoard and ESPnet's common files) is the duty
of the *leader* here: of the living learners that were restarted least often, the one of
the lowest rank.

A run can be stopped within an epoch: a signal asks for it, and exit code 75 reports it.
A scheduler that is about to end a job first signals its processes. A person who wants a
training to stop does the same, or presses Ctrl-C.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter, aggregate
from espnet2.train.trainer import TrainerOptions
from torch import nn

from espnet_distopt.core.driver import JoinLater
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.run_lock import RunLock
from espnet_distopt.distributed.stop_signals import Stopped
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.espnet.training import checkpoints
from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.espnet.training.saving import (
    Position,
    SavedStates,
    State,
    TrainingState,
)
from espnet_distopt.files.tensors import plain
from espnet_distopt.session import Session


@dataclass
class DistoptOptions(TrainerOptions):
    """ESPnet's trainer options, and the algorithm's.

    Attributes:
        distopt: The name of the algorithm; None trains as stock ESPnet does.
        distopt_conf: The algorithm's options by name, and `heartbeat_seconds`, the
            seconds of silence after which a learner counts as lost.
        log_level: The level of the log of the learner that writes it.
    """

    distopt: str | None
    distopt_conf: dict[str, Any]
    log_level: str


# Who acts for all


class Lead:
    """Says which learner acts for all, and makes it so.

    Attributes:
        leader: Its rank.
        leads: Whether it is this one.
        writer: TensorBoard's writer of the training figures, if this learner has taken
            the lead over and so has none of ESPnet's.
    """

    def __init__(
        self,
        rank: int,
        option: DistributedOption,
        options: DistoptOptions,
        lock: RunLock,
        joins: bool = False,
    ) -> None:
        self.leader = 0
        self.leads = rank == 0 and not joins
        self.writer: Any = None
        self._rank = rank
        self._option = option
        self._options = options
        self._lock = lock
        self._joins = joins
        self._valid_writer: Any = None
        if joins:
            # ESPnet would make a DDP model, whose constructor waits for all learners.
            option.distributed = False
            self._stand_back()

    def begin_epoch(self) -> None:
        """Let ESPnet see that there are other learners, once it has no DDP model."""
        if self._joins:
            self._option.distributed = True

    def follow(self, leader: int, members: Members) -> None:
        """Take the lead over, or hand it over, if the members have changed so."""
        before, self.leader = self.leader, leader
        if self.leads == (leader == self._rank):
            return
        self.leads = not self.leads
        if self.leads:
            self._take_over(before, members)
        else:
            self.writer = self._valid_writer = None
            self._stand_back()
            self._lock.free()

    def _stand_back(self) -> None:
        """Let ESPnet see a rank that writes nothing, and log errors only."""
        self._option.dist_rank = max(1, self._rank)
        logging.getLogger().setLevel(logging.ERROR)

    def _take_over(self, before: int, members: Members) -> None:
        self._option.dist_rank = 0
        logging.getLogger().setLevel(self._options.log_level)
        why = "" if before in members.ranks else f"learner {before} has died; "
        logging.warning(
            f"{why}learner {self._rank} writes log and checkpoints from now on "
            f"({len(members.ranks)} go on)"
        )
        self._lock.take_over()
        if self._options.use_tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            folder = Path(self._options.output_dir) / "tensorboard"
            self.writer = SummaryWriter(str(folder / "train"))
            self._valid_writer = SummaryWriter(str(folder / "valid"))

    def write_epoch(self, train: SubReporter, valid: SubReporter) -> None:
        """Write an epoch's figures for TensorBoard, as ESPnet does where it leads."""
        if self.writer is None:
            return
        count = train.get_total_count()
        self.writer.add_scalar("iter_epoch", train.get_epoch(), count)
        for writer, reporter in (self.writer, train), (self._valid_writer, valid):
            for key, values in reporter.stats.items():
                writer.add_scalar(key, aggregate(values), count)
            writer.flush()


class BySamples:
    """TensorBoard's writer of the training figures, with a second axis.

    ESPnet's axis is the steps of the learner that writes, and so differs between
    trainings of other numbers of learners, and of learners of other speed. Each figure
    is written once more, as `train_by_samples/NAME`, where the axis is the utterances
    of all learners; and those of validation as `valid_by_samples/NAME`.
    """

    def __init__(self, writer: Any, progress: Progress) -> None:
        self._writer, self._progress = writer, progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a training figure for both axes."""
        self._writer.add_scalar(name, value, step)
        samples = round(self._progress.total_samples())
        self._writer.add_scalar(f"train_by_samples/{name}", value, samples)

    def add_validation(self, reporter: SubReporter, samples: float) -> None:
        """Write the figures of an epoch in which so many utterances were trained on."""
        total = round(self._progress.total_samples(samples))
        for key, values in reporter.stats.items():
            self._writer.add_scalar(f"valid_by_samples/{key}", aggregate(values), total)


# What a replacement takes over


class Handover:
    """What a member hands over to a learner that joins a running training.

    A replacement joins before ESPnet's trainer begins. From a member the session takes
    the parameters and the optimizer's state, and beside them what this holds: where the
    member stands in the epoch, in the learning-rate schedule and with the loss scale.
    ESPnet's reporter and its schedulers of epochs come from the checkpoint of the epoch
    before: it is written before the learners meet to open the next epoch's work queue,
    and so before any member makes the step at whose end it hands its state over.

    If that checkpoint is missing, because its writer has died in between, a replacement
    waits for the next epoch. So its reporter has every epoch, and it can lead one day.

    Attributes:
        offered: Returns the state of this learner between two steps of its epoch.
        taken: What this learner has taken over from a member; None if nothing.
    """

    def __init__(self, output_dir: Path) -> None:
        self.offered: Callable[[], State] = dict
        self.taken: State | None = None
        self._output_dir = output_dir

    def state_dict(self) -> State:
        """Return the state of this learner, at the end of a step."""
        state: State = plain(self.offered())
        return state

    def load_state_dict(self, state: State) -> None:
        """Take over a member's state.

        Raises:
            JoinLater: There is no whole checkpoint of the epoch before the member's.
        """
        found = checkpoints.checkpoint_epoch(self._output_dir)
        if found < state["epoch"] - 1:
            raise JoinLater
        self.taken = state

    def take_over(self, training: TrainingState) -> Position:
        """Begin where a member was within its epoch when this learner joined.

        Raises:
            InputError: ESPnet begins another epoch.
        """
        state, self.taken = self.taken, None
        epoch, rank = training.reporter.get_epoch(), training.session.learner.rank
        assert state is not None
        if epoch != state["epoch"]:
            raise InputError(
                f"learner {rank} has joined epoch {state['epoch']}, and the "
                f"checkpoint in {self._output_dir} begins epoch {epoch}: "
                "leave checkpoint.pth alone while others train"
            )
        return training.take_over(state)


# The run


class Run:
    """What lives from the start of this process to its end.

    Use it in a `with` statement: leaving it writes the learner's last line and closes
    the session, which tells the other learners if this one has failed.

    Attributes:
        session: None before the first epoch, and in stock training.
        stop_signal: The name of the signal that has asked this process to stop.
        reporter: ESPnet's reporter of this epoch's training; None before the first.
        writer: TensorBoard's writer of this epoch; None for a learner without one.
        consensus_distance: That at the end of the last epoch; None without one.
    """

    def __init__(
        self, options: DistoptOptions, rank: int, size: int, lead: Lead
    ) -> None:
        self.options = options
        self.output_dir = Path(options.output_dir)
        self.rank, self.size = rank, size
        self.lead = lead
        self.saved = SavedStates(self.output_dir, rank, size)
        self.handover = Handover(self.output_dir)
        self._algorithm = options.distopt or "none"
        self.progress = Progress(
            self.output_dir,
            options.max_epoch,
            talks=lead.leads,
            algorithm=self._algorithm,
            learners=size,
        )
        self.session: Session | None = None
        self.writer: BySamples | None = None
        self.reporter: SubReporter | None = None
        self.stop_signal: str | None = None
        self.consensus_distance: float | None = None
        self._members = Members.everybody(size)
        self._restarts = dict.fromkeys(range(size), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Stopped):
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
        checkpoints.remove_unfinished(self.output_dir)
        if self.options.distopt is not None and not self.options.resume:
            checkpoints.set_checkpoint_aside(self.output_dir)
        else:
            checkpoints.recover_checkpoint(self.output_dir)

    def keep_checkpoint(self) -> None:
        """Copy, where this learner leads, the checkpoint that ESPnet will overwrite."""
        if self.lead.leads:
            checkpoints.keep_checkpoint(self.output_dir)

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
        self._follow_lead()
        if replaced:  # It has died and was replaced within one step of this learner.
            self.progress.follow(newest.without(replaced))
        if replaced or newest.ranks != before:
            self.progress.follow(newest)

    def _follow_lead(self) -> None:
        leader = min(self._members.ranks, key=lambda r: (self._restarts[r], r))
        self.lead.follow(leader, self._members)
        self.progress.talks = self.lead.leads

    def join(self, model: nn.Module, optimizers: Sequence[Any]) -> int:
        """Join the others in the place of one that has died; return their epoch.

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

    def ask_to_stop(self, signal_name: str) -> None:
        """Note that a signal asks this process to stop."""
        self.stop_signal = signal_name

    def stop(self, saved: bool) -> NoReturn:
        """Say that the run stops within the epoch, and end this process.

        If this learner's state is not `saved`, the next run repeats the epoch.
        """
        resume = bool(self.options.resume)
        self.progress.stop(self.stop_signal, saved=saved, resume=resume)
        raise Stopped

    def end_epoch(self, reporter: SubReporter) -> None:
        """Write the figures of an epoch whose validation is over."""
        samples = float(self.progress.samples)
        if self.session is None:
            samples *= self.size  # ESPnet divides each batch equally.
        else:
            self.saved.write()
            mean = self.session.mean(samples)
            samples = mean * len(self.session.learner.members.ranks)
        self.follow()
        self.progress.end_epoch(reporter, samples)
        if self.writer is not None:
            self.writer.add_validation(reporter, samples)
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
    """The trainer options during a run, which ESPnet hands to every method."""

    run: Run
