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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_distopt.errors import InputError
from espnet_distopt.espnet import side_files
from espnet_distopt.espnet.options import add_arguments
from espnet_distopt.espnet.progress import Progress
from espnet_distopt.espnet.stepping import Batch, Stepping
from espnet_distopt.session import Session

SEED_STRIDE = 1000003
"""Between the seeds of two learners, so that they draw different dropout masks."""


@dataclass
class DistoptOptions(TrainerOptions):
    """ESPnet's trainer options, the algorithm's, and what lives as long as the run."""

    distopt: str | None
    distopt_conf: dict[str, Any]
    session: Session | None = None
    progress: Progress | None = None
    consensus_distance: float = 0.0


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
        """Train; tell the other learners if this one fails."""
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
        if distributed.distributed:
            dist.barrier()
        with contextlib.ExitStack() as stack:
            stack.push(lambda *error: _leave(options.session, error[1]))
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
        """Train on this learner's shards, then form the consensus model."""
        epoch, rank = reporter.get_epoch(), distributed_option.dist_rank or 0
        if rank == 0:
            side_files.keep_checkpoint(Path(options.output_dir))
        if options.distopt is not None:
            model = getattr(model, "module", model)
            cls._enter_epoch(model, options, rank, epoch, **kwargs)
            distributed_option = replace(distributed_option, distributed=False)
        assert options.progress is not None
        options.progress.begin_epoch(epoch, _length(iterator))
        all_steps_are_invalid: bool = super().train_one_epoch(
            model=model,
            iterator=Stepping(
                iterator,
                options.session,
                reporter,
                options.accum_grad,
                options.progress,
            ),
            reporter=reporter,
            options=options,
            distributed_option=distributed_option,
            **kwargs,
        )
        options.progress.end_training(reporter)
        if options.session is None:
            return all_steps_are_invalid
        return cls._leave_epoch(options, epoch, all_steps_are_invalid, **kwargs)

    @classmethod
    def _enter_epoch(
        cls,
        model: torch.nn.Module,
        options: DistoptOptions,
        rank: int,
        epoch: int,
        optimizers: Any,
        schedulers: Any,
        **_: Any,
    ) -> None:
        if options.session is None:
            if len(optimizers) != 1:
                raise InputError(f"distopt needs one optimizer, not {len(optimizers)}")
            assert options.distopt is not None
            options.session = Session(
                model, optimizers[0], options.distopt, **options.distopt_conf
            )
            if epoch > 1:
                _restore(options, rank, epoch - 1, optimizers[0], schedulers[0])
        options.session.leave_consensus()
        if rank > 0:
            seed = (options.seed + epoch + SEED_STRIDE * rank) % 2**32
            set_all_random_seed(seed)

    @classmethod
    def _leave_epoch(
        cls,
        options: DistoptOptions,
        epoch: int,
        invalid: bool,
        optimizers: Any,
        schedulers: Any,
        **_: Any,
    ) -> bool:
        """Drain, save this learner, form the consensus; agree on what comes next."""
        session = options.session
        assert session is not None and options.progress is not None
        session.finish()
        options.consensus_distance = session.enter_consensus()
        state = {
            "epoch": epoch,
            "session": session.state_dict(),
            "optimizer": optimizers[0].state_dict(),
            "scheduler": _batch_scheduler_state(schedulers[0]),
        }
        side_files.save_learner(
            state, Path(options.output_dir), session.learner.rank, epoch
        )
        # One learner that leaves the run alone would make all others wait for it.
        return session.mean(float(invalid)) == 1.0

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


def _leave(session: Session | None, error: BaseException | None) -> None:
    if session is not None:
        session.driver.leave(error)


def _length(iterator: Iterable[Batch]) -> int | None:
    try:
        return len(iterator)  # type: ignore[arg-type]
    except TypeError:
        return None


def _batch_scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Return the state of a scheduler that counts this learner's own steps."""
    if isinstance(scheduler, AbsBatchStepScheduler):
        state: dict[str, Any] = scheduler.state_dict()
        return {k: v for k, v in state.items() if isinstance(v, (int, float, list))}
    return {}


def _restore(
    options: DistoptOptions, rank: int, epoch: int, optimizer: Any, scheduler: Any
) -> None:
    """Go on from this learner's own state after `epoch`, if there is one.

    ESPnet has loaded the consensus model and learner 0's optimizer by now.
    """
    assert options.session is not None
    state = side_files.load_learner(Path(options.output_dir), rank, epoch)
    if state is None:
        logging.error(
            f"learner {rank} has no state of its own after epoch {epoch}; it goes on "
            "from the consensus model with learner 0's optimizer"
        )
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    if isinstance(scheduler, AbsBatchStepScheduler):
        scheduler.load_state_dict(state["scheduler"])
    else:
        # an epoch's scheduler has stepped after the state was saved
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    options.session.load_state_dict(state["session"])
    logging.info(f"Learner {rank} goes on from its own state after epoch {epoch}")
