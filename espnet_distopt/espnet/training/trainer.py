"""ESPnet's trainer, with an algorithm of this package in the place of DDP.

Stock ESPnet trains several learners by DDP, and its training loop also meets in three
collectives a step. An algorithm that communicates less often must do without both. So
`DistoptTrainer` takes the model out of DDP, tells the loop that the training is not
distributed, and lets the algorithm communicate from inside the batch iterator, between
two steps. The rest is stock ESPnet: how the data is divided, validation (which sees the
consensus model), early stopping, the average of the n best models, plots and all files.
"""

import argparse
import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter
from espnet2.train.trainer import Trainer

from espnet_distopt.algorithms import lookup
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.distributed.nccl import advised
from espnet_distopt.distributed.run_lock import RunLock
from espnet_distopt.distributed.stop_signals import on_stop_signal
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.espnet.training import checkpoints
from espnet_distopt.espnet.training.batches import Batch, takes_static_shards
from espnet_distopt.espnet.training.epoch import Epoch, validate_together
from espnet_distopt.espnet.training.one_run import lock_of_run
from espnet_distopt.espnet.training.options import add_arguments
from espnet_distopt.espnet.training.run import (
    BySamples,
    DistoptOptions,
    Lead,
    Run,
    RunOptions,
)


class DistoptTrainer(Trainer):
    """Trains with `--distopt`; without it, does exactly what the stock trainer does."""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add the distopt options to ESPnet's parser."""
        add_arguments(parser)

    @classmethod
    def build_options(cls, args: argparse.Namespace) -> DistoptOptions:
        """Return the trainer's options from those of the command."""
        names = [field.name for field in fields(DistoptOptions)]
        return DistoptOptions(**{name: getattr(args, name) for name in names})

    @classmethod
    def run(
        cls,
        trainer_options: DistoptOptions,
        distributed_option: DistributedOption,
        train_iter_factory: AbsIterFactory,
        **kwargs: Any,
    ) -> None:
        """Train, in a directory that learner 0 has locked.

        Raises:
            Stopped: The run was asked to stop, and has stopped within an epoch.
        """
        options, distributed = trainer_options, distributed_option.distributed
        joins = distributed and incarnation() > 0
        lock = lock_of_run() or RunLock(Path(options.output_dir))
        size = dist.get_world_size() if distributed else 1
        rank = distributed_option.dist_rank or 0
        lead = Lead(rank, distributed_option, options, lock, joins)
        run = Run(options, rank, size, lead)
        if not joins:
            run.prepare_checkpoint()
        if distributed and not joins:
            _warn_of_static_shards(run, train_iter_factory)
            _warn_of_wandb(run)
            with advised():
                dist.barrier()
        # Stock learners cannot agree on a step to stop at.
        can_stop = options.distopt is not None or not distributed
        listening = on_stop_signal(run.ask_to_stop) if can_stop else nullcontext()
        with run, listening:
            changed: dict[str, Any] = {"run": run}
            if not joins and (last := _ended_early(options)):
                changed["max_epoch"] = last
            if joins:
                changed |= _join(run, train_iter_factory, **kwargs)
            super().run(
                trainer_options=RunOptions(**{**vars(options), **changed}),
                distributed_option=distributed_option,
                train_iter_factory=train_iter_factory,
                **kwargs,
            )
            run.confirm_end()
            if run.progress.talks:
                for line in checkpoints.far_averages(
                    run.output_dir,
                    options.best_model_criterion,
                    options.keep_nbest_models,
                ):
                    print(line, flush=True)

    @staticmethod
    def resume(
        checkpoint: str | Path, model: torch.nn.Module, reporter: Any, **kwargs: Any
    ) -> None:
        """Load the checkpoint; write the epoch's model if a kill has prevented it.

        A learner that has joined has its model and optimizer from a member already, and
        loads ESPnet's reporter and schedulers only.

        Raises:
            InputError: The checkpoint is of another optimizer.
        """
        joins = dist.is_initialized() and incarnation() > 0
        if joins:
            model = torch.nn.Module()
            kwargs |= {"optimizers": [], "scaler": None, "strict": False}
        Trainer.resume(checkpoint=checkpoint, model=model, reporter=reporter, **kwargs)
        if joins:
            return
        _check_optimizers(Path(checkpoint), kwargs["optimizers"])
        if not dist.is_initialized() or dist.get_rank() == 0:
            checkpoints.recover_epoch_model(
                Path(checkpoint).parent, reporter.get_epoch(), model.state_dict()
            )

    @classmethod
    def train_one_epoch(
        cls,
        model: torch.nn.Module,
        iterator: Iterable[Batch],
        reporter: SubReporter,
        options: RunOptions,
        distributed_option: DistributedOption,
        optimizers: Any,
        schedulers: Any,
        scaler: Any,
        summary_writer: Any,
    ) -> bool:
        """Train on this learner's batches, then form the consensus model.

        Returns whether all steps of all learners were invalid.
        """
        run = options.run
        run.lead.begin_epoch()
        run.keep_checkpoint()
        if options.distopt is not None:
            model = _out_of_ddp(model)
            distributed_option = replace(distributed_option, distributed=False)
        epoch = Epoch(run, model, reporter, optimizers, schedulers, scaler)
        writer = run.lead.writer or summary_writer
        run.writer = BySamples(writer, run.progress) if writer is not None else None

        def loop(epoch: Epoch) -> bool:
            invalid: bool = super(DistoptTrainer, cls).train_one_epoch(
                model=model,
                iterator=epoch,
                reporter=reporter,
                options=options,
                distributed_option=distributed_option,
                optimizers=optimizers,
                schedulers=epoch.schedulers,
                scaler=scaler,
                summary_writer=run.writer,
            )
            return invalid

        if options.distopt is None or options.accum_grad == 1:
            return epoch.train_by(loop, iterator)
        hook = model.register_forward_hook(_keep_reported_loss)
        try:
            return epoch.train_by(loop, iterator)
        finally:
            hook.remove()

    @classmethod
    def validate_one_epoch(
        cls,
        model: torch.nn.Module,
        iterator: Iterable[Batch],
        reporter: SubReporter,
        options: RunOptions,
        distributed_option: DistributedOption,
    ) -> None:
        """Validate the consensus model, which the parameters hold at this point."""
        run, session = options.run, options.run.session
        survives = session is not None and session.algorithm.survives
        together = survives and distributed_option.distributed
        if together:
            model = getattr(model, "module", model)
            distributed_option = replace(distributed_option, distributed=False)

        def validate(batches: Iterable[Batch], figures: SubReporter) -> None:
            super(DistoptTrainer, cls).validate_one_epoch(
                model=model,
                iterator=_reporting(batches, figures, run.consensus_distance),
                reporter=figures,
                options=options,
                distributed_option=distributed_option,
            )

        if session is not None and together:
            validate_together(validate, session, iterator, reporter)
        else:
            validate(iterator, reporter)
        run.end_epoch(reporter)

    @classmethod
    def plot_attention(cls, summary_writer: Any, options: Any, **kwargs: Any) -> None:
        """Plot as ESPnet does, also by a learner that has taken the lead over."""
        writer = options.run.lead.writer or summary_writer
        super().plot_attention(summary_writer=writer, options=options, **kwargs)


def _out_of_ddp(model: Any) -> torch.nn.Module:
    """Return the model in a DDP, if it is in one, and free DDP's room for gradients.

    DDP's reducer has buckets as large as all gradients. It is dropped: only a backward
    pass through DDP would need it. Validation may still go through DDP, which gives
    learner 0's buffers to all.
    """
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        owner: Any = model
        owner.reducer = owner.logger = None
    bare: torch.nn.Module = getattr(model, "module", model)
    return bare


def _keep_reported_loss(model: torch.nn.Module, args: Any, output: Any) -> None:
    """Give the loss to report memory of its own, as DDP's average over learners has.

    ESPnet divides the loss by `accum_grad` in place, and models mostly report a view
    of the same memory. Losses were too small by that factor beside those of DDP.
    """
    stats = output["stats"] if isinstance(output, dict) else output[1]
    if isinstance(stats.get("loss"), torch.Tensor):
        stats["loss"] = stats["loss"].clone()


def _reporting(
    iterator: Iterable[Batch], reporter: SubReporter, distance: float | None
) -> Iterable[Batch]:
    """Add the consensus distance to the figures of the first validation batch."""
    for number, batch in enumerate(iterator):
        if number == 0 and distance is not None:
            reporter.register({"consensus_distance": distance})
        yield batch


def _ended_early(options: DistoptOptions) -> int:
    """Return the epoch after which `patience` has ended the training to resume, or 0.

    ESPnet 202511 looks at it only after one more epoch, at each restart.
    """
    if not options.resume or options.patience is None:
        return 0
    return checkpoints.ended_early(
        Path(options.output_dir), options.patience, options.early_stopping_criterion
    )


def _join(
    run: Run,
    train_iter_factory: AbsIterFactory,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    **kwargs: Any,
) -> dict[str, Any]:
    """Join the others in the place of a learner that has died.

    Returns the options that let ESPnet's trainer begin in the epoch in which they are,
    and write nothing. After an InputError the launcher does not start it again.
    """
    if takes_static_shards(run.options.distopt, train_iter_factory):
        raise InputError(
            f"learner {run.rank} cannot return to this training: the batches of its "
            "iterator are divided once and for all; it takes part again in the next run"
        )
    model.train()  # as at the beginning of each epoch
    try:
        epoch = run.join(model, optimizers)
    except PeerLostError as error:
        raise InputError(str(error)) from error
    return {"resume": epoch > 1, "use_tensorboard": False}


def _check_optimizers(
    checkpoint: Path, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Raise InputError if optimizers have loaded the options of other ones."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if lacking := optimizer.defaults.keys() - group.keys():
                raise InputError(
                    f"{checkpoint} is of another optimizer than "
                    f"{type(optimizer).__name__}, without '{min(lacking)}': go on with "
                    "that one, or begin anew by --resume false"
                )


def _warn_of_static_shards(run: Run, factory: AbsIterFactory) -> None:
    """Warn, on learner 0, where learners that step alone cannot share their batches."""
    algorithm = run.options.distopt
    if run.rank == 0 and takes_static_shards(algorithm, factory):
        logging.warning(
            f"{algorithm}: batches of this iterator are divided once and for all: "
            "epochs end with the slowest learner"
        )


def _warn_of_wandb(run: Run) -> None:
    """Warn, on learner 0, where others may live on, who then go without wandb."""
    algorithm = run.options.distopt
    may_die = algorithm is not None and lookup(algorithm).algorithm.survives
    if run.options.use_wandb and may_die:  # ESPnet sets it on learner 0 alone.
        logging.warning(
            f"{algorithm}: if learner 0 dies, the others go on without wandb, and so "
            "does its replacement; the log and TensorBoard go on"
        )
