"""ESPnet's tasks, trained by `DistoptTrainer`.

`distopt_task(SomeTask, "DistoptSomeTask", __name__)` makes one of any ESPnet task. Call
it at module level: ESPnet can start its learners as child processes, and these import
the task from its module.
"""

import argparse
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.tasks.abs_task import AbsTask, IteratorOptions, optim_classes
from espnet2.tasks.asr import ASRTask
from espnet2.train.trainer import Trainer
from torch.multiprocessing.spawn import ProcessExitedException

from espnet_distopt.distributed.admission import start_together
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.errors import STOPPED, InputError
from espnet_distopt.espnet.models.padded_rnn import pad_rnn_encoders
from espnet_distopt.espnet.training.epoch_batches import UncutBatches, whole_batches
from espnet_distopt.espnet.training.gpus import check_gpus
from espnet_distopt.espnet.training.one_run import lock_of_run, run_in
from espnet_distopt.espnet.training.options import (
    gpus_of_machine,
    launched_rank,
    settle,
)
from espnet_distopt.espnet.training.queued_batches import (
    divides_batches,
    steps_alone,
)
from espnet_distopt.espnet.training.same_training import (
    describe_tokens,
    keep_to_one_model,
    keep_to_one_source,
    label_files,
    refuse_other_states,
    refuse_other_tokens,
    tell_of_other_data,
)
from espnet_distopt.espnet.training.trainer import DistoptTrainer
from espnet_distopt.optimizers.lamb import Lamb


@contextmanager
def _first_of_machine_first() -> Generator[None, None, None]:
    """Let the first learner of a machine raise an input error before the others.

    The learners of a machine mostly are refused alike. The launcher ends them all as
    soon as the first one has printed why, so that it is printed once. A learner that is
    refused alone prints it, too.
    """
    try:
        yield
    except InputError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(2)
        raise


def distopt_task(
    task: type[AbsTask],
    name: str,
    module: str,
    sources: Callable[[argparse.Namespace], Sequence[Path]] = label_files,
    elsewhere: str = "--tag NAME",
) -> type[AbsTask]:
    """Return a subclass of `task` that trains with `DistoptTrainer`.

    Args:
        task: An ESPnet task class with one optimizer and ESPnet's common trainer.
        name: The name of the variable that the result is assigned to.
        module: The `__name__` of the module in which that happens.
        sources: Returns, for ESPnet's options, the files of which a training learns
            nothing else when it goes on.
        elsewhere: The option by which a recipe trains in another directory.

    Raises:
        InputError: The task has a trainer of its own, as those for speakers and GANs.
    """
    if task.trainer is not Trainer:
        raise InputError(
            f"{task.__name__} trains by a {task.trainer.__name__} of its own, which "
            "distopt_task would replace: take a task that trains by ESPnet's Trainer"
        )

    class Task(task):
        trainer = DistoptTrainer

        @classmethod
        def get_parser(cls) -> argparse.ArgumentParser:
            _offer_lamb()
            parser: argparse.ArgumentParser = super().get_parser()
            return parser

        @classmethod
        def build_optimizers(
            cls, args: argparse.Namespace, model: torch.nn.Module
        ) -> list[torch.optim.Optimizer]:
            _offer_lamb()  # A child process gets here without the parser.
            optimizers: list[torch.optim.Optimizer]
            optimizers = super().build_optimizers(args, model)
            return optimizers

        @classmethod
        def main(
            cls,
            args: argparse.Namespace | None = None,
            cmd: Sequence[str] | None = None,
        ) -> None:
            if args is None:
                args = cls.get_parser().parse_args(cmd)
            with _first_of_machine_first():
                settle(args)
                check_replacement(args)
                if gpus := gpus_of_machine(args):
                    check_gpus(gpus)
            try:
                super().main(args=args)
            except ProcessExitedException as ended:
                # A child of ESPnet's has said why it was refused, or that it stops.
                if ended.exit_code not in (2, STOPPED):
                    raise
                raise SystemExit(ended.exit_code) from None

        @classmethod
        def main_worker(cls, args: argparse.Namespace) -> None:
            with run_in(Path(args.output_dir)):
                super().main_worker(args)

        @classmethod
        def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
            # It is the first thing that ESPnet does when there is a process group, and
            # before it writes. It also builds models to decode with, outside of a run.
            lock = lock_of_run()
            if lock is not None and not args.collect_stats:

                def decide() -> None:
                    lock.take()
                    refuse_other_tokens(args, elsewhere)
                    refuse_other_states(args)
                    # These write, and a refused training leaves the directory alone.
                    keep_to_one_model(args, cls.class_choices_list, elsewhere)
                    keep_to_one_source(args, sources(args), elsewhere)
                    tell_of_other_data(args)

                start_together(lambda: describe_tokens(args), decide)
            model: Any = super().build_model(args)
            pad_rnn_encoders(model)
            return model  # type: ignore[no-any-return]

        @classmethod
        def build_sequence_iter_factory(
            cls, args: argparse.Namespace, iter_options: IteratorOptions, mode: str
        ) -> AbsIterFactory:
            whole = divides_batches(args, iter_options, mode)
            if whole:
                size = dist.get_world_size()
                args, iter_options = whole_batches(args, iter_options, size)
            stock: Any = super().build_sequence_iter_factory(
                args=args, iter_options=iter_options, mode=mode
            )
            return UncutBatches(stock, size) if whole else stock

    # Pickle finds a class by its name and module, so they must be those of the result.
    Task.__name__ = Task.__qualname__ = name
    Task.__module__ = module
    return Task


def check_replacement(args: argparse.Namespace) -> None:
    """Refuse a process that replaces a learner which has died, if it cannot join.

    The learners that live are in the middle of the training, and wait for nobody. A
    replacement of learner 0 would begin a second run of wandb, so it does without.

    Raises:
        InputError: Nobody can join this training.
    """
    if incarnation() == 0:
        return
    if args.collect_stats or not steps_alone(args.distopt):
        raise InputError(
            f"learner {launched_rank()} cannot return to a training that runs with "
            f"distopt: {args.distopt or 'none'} (with adpsgd it can): it takes part "
            "again in the next run"
        )
    args.use_wandb = False


def _offer_lamb() -> None:
    """Let `optim: lamb` name this package's LAMB.

    ESPnet looks optimizers up in a dictionary of its own. That has a LAMB already where
    torch_optimizer is installed, which then stays.
    """
    optim_classes.setdefault("lamb", Lamb)


DistoptASRTask = distopt_task(ASRTask, "DistoptASRTask", __name__)
