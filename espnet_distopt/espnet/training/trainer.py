"""ESPnet's trainer with the communication of an algorithm in place of DDP's.

The stock loop meets in three collectives a step when it knows that it is distributed.
So it is told that it is not, its model is taken out of DDP, and the algorithm runs from
the iterator. Sharding of the data, validation (of the consensus model), early stopping,
n-best averaging, plots and all files stay stock.
"""

import argparse
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training import side_files
from espnet_distopt.espnet.training.learner_state import (
    State,
    TrainingState,
    capture,
    restore_after,
    restore_within,
)
from espnet_distopt.espnet.training.loading import without_first
from espnet_distopt.espnet.training.one_run import only_run
from espnet_distopt.espnet.training.options import add_arguments
from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.espnet.training.queued_batches import (
    EpochBatches,
    QueuedBatches,
    takes_static_shards,
)
from espnet_distopt.espnet.training.stepping import Batch, Stepping
from espnet_distopt.espnet.training.stopping import Stopped, on_stop_signal
from espnet_distopt.session import Session

SEED_STRIDE = 1000003
"""Between the seeds of two learners, so that they draw different dropout masks."""


@dataclass
class DistoptOptions(TrainerOptions):
    """ESPnet's trainer options, the algorithm's, and what lives as long as the run.

    Attributes:
        stop_signal: the name of the signal that has asked this process to stop.
        saves: how often this learner's state has been saved, as often as any other's.
        resumes: there may be states to go on from, and nobody has looked yet.
    """

    distopt: str | None
    distopt_conf: dict[str, Any]
    session: Session | None = None
    progress: Progress | None = None
    consensus_distance: float = 0.0
    stop_signal: str | None = None
    saves: int = 0
    resumes: bool = False


class DistoptTrainer(Trainer):
    """Trains with `--distopt`; without it, does exactly what the stock trainer does."""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add the distopt options to ESPnet's parser."""
        add_arguments(parser)

    @classmethod
    def build_options(cls, args: argparse.Namespace) -> DistoptOptions:
        """Return the trainer's options from the command's."""
        names = {f.name for f in fields(TrainerOptions)}
        stock = {name: getattr(args, name) for name in names}
        return DistoptOptions(
            **stock, distopt=args.distopt, distopt_conf=args.distopt_conf
        )

    @classmethod
    def run(cls, **kwargs: Any) -> None:
        """Train, alone in the directory; tell the other learners if this one fails."""
        with only_run(Path(kwargs["trainer_options"].output_dir)):
            cls._run(**kwargs)

    @classmethod
    def _run(cls, **kwargs: Any) -> None:
        options, distributed = kwargs["trainer_options"], kwargs["distributed_option"]
        output_dir, rank = Path(options.output_dir), distributed.dist_rank or 0
        options.progress = Progress(
            output_dir,
            options.max_epoch,
            talks=rank == 0,
            algorithm=options.distopt or "none",
            learners=dist.get_world_size() if distributed.distributed else 1,
        )
        if rank == 0:
            side_files.recover_checkpoint(output_dir)
            if distributed.distributed and takes_static_shards(
                options.distopt, kwargs["train_iter_factory"]
            ):
                logging.warning(
                    f"{options.distopt}: batches of this iterator are divided once and "
                    "for all: epochs end with the slowest learner"
                )
        if distributed.distributed:
            dist.barrier()
        with contextlib.ExitStack() as stack:
            stack.push(lambda *error: _leave(options, error[1]))
            if options.distopt is not None or not distributed.distributed:
                stack.enter_context(on_stop_signal(partial(_ask_to_stop, options)))
            super().run(**kwargs)

    @staticmethod
    def resume(
        checkpoint: str | Path, model: torch.nn.Module, reporter: Any, **kwargs: Any
    ) -> None:
        """Load the checkpoint; complete what a kill may have left out."""
        Trainer.resume(checkpoint=checkpoint, model=model, reporter=reporter, **kwargs)
        if not dist.is_initialized() or dist.get_rank() == 0:
            side_files.recover_epoch_model(
                Path(checkpoint).parent, reporter.get_epoch(), model.state_dict()
            )

    @classmethod
    def train_one_epoch(
        cls,
        model: torch.nn.Module,
        iterator: Iterable[Batch],
        reporter: SubReporter,
        options: DistoptOptions,
        distributed_option: DistributedOption,
        **kwargs: Any,
    ) -> bool:
        """Train on this learner's batches, then form the consensus model."""
        if not distributed_option.dist_rank:
            side_files.keep_checkpoint(Path(options.output_dir))
        assert options.progress is not None
        training, within = None, None
        if options.distopt is not None:
            model = getattr(model, "module", model)
            training = cls._training(model, reporter, options, **kwargs)
            within = cls._enter_epoch(training, options)
            distributed_option = replace(distributed_option, distributed=False)
        options.progress.begin_epoch(
            reporter.get_epoch(),
            _length(iterator),
            within["step"] if within else 0,
            within["spent"] if within else None,
        )
        done = within["batches"] if within else 0
        if training is not None and done is None:
            # an earlier run has ended between training and validation
            options.consensus_distance = training.session.enter_consensus()
            return False
        queue = None
        if training is not None and isinstance(iterator, EpochBatches):
            iterator = queued = QueuedBatches(
                iterator,
                training.session,
                training.scheduler,
                options.accum_grad,
                within["queued"] if within else None,
            )
            training, queue = replace(training, queued=queued), queued.queue
            kwargs["schedulers"] = [queued.scheduler]
        else:
            iterator = without_first(iterator, done)
        all_steps_are_invalid: bool = super().train_one_epoch(
            model=model,
            iterator=Stepping(
                iterator,
                options.session,
                reporter,
                options.accum_grad,
                options.progress,
                partial(cls._stop_if_asked, training, options),
                done,
                within["random"] if within else None,
                queue,
            ),
            reporter=reporter,
            options=options,
            distributed_option=distributed_option,
            **kwargs,
        )
        options.progress.end_training(reporter)
        if training is None:
            return all_steps_are_invalid
        batches = options.progress.batches
        if not training.session.finish():
            # what was accumulated for a step that was not made is lost
            cls._stop(training, options, batches - batches % options.accum_grad)
        if training.queued is not None:
            training.queued.finish()
        options.consensus_distance = training.session.enter_consensus()
        cls._save(training, options, None)
        # One learner that leaves the run alone would make all others wait for it.
        invalid = all_steps_are_invalid and batches > done
        return training.session.mean(float(invalid)) == 1.0

    @classmethod
    def _training(
        cls,
        model: torch.nn.Module,
        reporter: SubReporter,
        options: DistoptOptions,
        optimizers: Any,
        schedulers: Any,
        scaler: Any,
        **_: Any,
    ) -> TrainingState:
        """Return what takes part in this epoch; begins the session with the first."""
        if options.session is None:
            if len(optimizers) != 1:
                raise InputError(f"distopt needs one optimizer, not {len(optimizers)}")
            assert options.distopt is not None
            options.session = Session(
                model, optimizers[0], options.distopt, **options.distopt_conf
            )
            options.resumes = True
        return TrainingState(
            options.session, model, reporter, optimizers[0], schedulers[0], scaler
        )

    @classmethod
    def _enter_epoch(
        cls, training: TrainingState, options: DistoptOptions
    ) -> State | None:
        """Return the state within this epoch that the learners go on from, if any."""
        within: State | None = None
        epoch = training.reporter.get_epoch()
        if options.resumes:
            options.resumes = False
            within = _common_state(training.session, options, epoch)
            if within is not None:
                restore_within(training, within)
            elif epoch > 1:
                _restore_after(training, options, epoch - 1)
        training.session.leave_consensus()
        rank = training.session.learner.rank
        if rank > 0:
            seed = (options.seed + epoch + SEED_STRIDE * rank) % 2**32
            set_all_random_seed(seed)
        return within

    @classmethod
    def _stop_if_asked(
        cls, training: TrainingState | None, options: DistoptOptions, batches: int
    ) -> None:
        """Save this learner and end the process, if now is the time."""
        assert options.progress is not None
        if training is None:  # stock training: the epoch will be repeated
            if options.stop_signal is None:
                return
            options.progress.stop(options.stop_signal, saved=False)
            raise Stopped
        session = training.session
        if options.stop_signal is not None:
            session.request_stop()
        if session.agree_to_stop():
            session.pause()
            cls._stop(training, options, batches)

    @classmethod
    def _stop(
        cls, training: TrainingState, options: DistoptOptions, batches: int
    ) -> None:
        """Save this learner, which has paused within the epoch, and end the process."""
        assert options.progress is not None
        cls._save(training, options, batches)
        training.session.mean(0.0)  # nobody leaves while others need the store
        options.progress.stop(options.stop_signal, saved=True)
        raise Stopped

    @classmethod
    def _save(
        cls, training: TrainingState, options: DistoptOptions, batches: int | None
    ) -> None:
        assert options.progress is not None
        options.saves += 1
        progress = options.progress
        own = {
            "saves": options.saves,
            "spent": progress.spent(),
            "step": None if batches is None else progress.position,
        }
        side_files.save_learner(
            {**capture(training, batches), **own},
            Path(options.output_dir),
            training.session.learner.rank,
            training.reporter.get_epoch(),
        )

    @classmethod
    def validate_one_epoch(
        cls,
        iterator: Iterable[Batch],
        reporter: SubReporter,
        options: DistoptOptions,
        **kwargs: Any,
    ) -> None:
        """Validate the consensus model, which the parameters hold at this point."""
        super().validate_one_epoch(
            iterator=_reporting(iterator, reporter, options),
            reporter=reporter,
            options=options,
            **kwargs,
        )
        assert options.progress is not None
        samples = float(options.progress.samples)
        if options.session is not None:
            samples = options.session.mean(samples) * options.session.learner.size
        options.progress.end_epoch(reporter, samples)


def _reporting(
    iterator: Iterable[Batch], reporter: SubReporter, options: DistoptOptions
) -> Iterable[Batch]:
    """Add the consensus distance to the figures of the first validation batch."""
    for number, batch in enumerate(iterator):
        if number == 0 and options.session is not None:
            distance = options.consensus_distance
            reporter.register({"consensus_distance": distance})
        yield batch


def _leave(options: DistoptOptions, error: BaseException | None) -> None:
    assert options.progress is not None
    options.progress.leave(error)
    if options.session is not None:
        options.session.close(error)


def _length(iterator: Iterable[Batch]) -> int | None:
    try:
        return len(iterator)  # type: ignore[arg-type]
    except TypeError:
        return None


def _ask_to_stop(options: DistoptOptions, signal_name: str) -> None:
    options.stop_signal = signal_name


def _common_state(
    session: Session, options: DistoptOptions, epoch: int
) -> State | None:
    """Return this learner's state within `epoch`, if all learners have one.

    A kill while states are saved leaves some of an earlier stop, or none: then none is
    of use. Nor are those of another number of learners, whose batches were others.
    """
    output_dir, rank = Path(options.output_dir), session.learner.rank
    state = side_files.load_learner(output_dir, rank, epoch)
    if session.mean(float(state is not None)) == 0.0:
        return None
    fits = state is not None and state["learners"] == session.learner.size
    saves = float(state["saves"]) if state is not None else -1.0
    same = saves == session.mean(saves)
    if session.mean(float(fits and same)) == 1.0:
        options.saves = int(saves)
        return state
    logging.error(
        f"learner {rank}: there is no common state of all {session.learner.size} "
        f"learners within epoch {epoch}: the epoch is repeated"
    )
    side_files.forget_learner(output_dir, rank, epoch)
    return None


def _restore_after(
    training: TrainingState, options: DistoptOptions, epoch: int
) -> None:
    """Go on from this learner's own state after `epoch`, if there is one."""
    rank = training.session.learner.rank
    state = side_files.load_learner(Path(options.output_dir), rank, epoch)
    if state is None:
        logging.error(
            f"learner {rank} has no state of its own after epoch {epoch}; it goes on "
            "from the consensus model with learner 0's optimizer"
        )
        return
    options.saves = state["saves"]
    restore_after(training, state)
