"""ESPnet's tasks, trained by `DistoptTrainer`.

`distopt_task(SomeTask, "DistoptSomeTask", __name__)` makes one of any ESPnet task. Call
it at module level: ESPnet can start its learners as child processes, and these import
the task from its module.

`task` makes one by the name of ESPnet's command, as `st` of `espnet2.bin.st_train`. It
can be pickled as a name of this module.
"""

import argparse
import functools
import importlib
import inspect
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.tasks.abs_task import (
    AbsTask,
    IteratorOptions,
    optim_classes,
    scheduler_classes,
)
from espnet2.tasks.asr import ASRTask
from espnet2.tasks.lm import LMTask
from espnet2.train.trainer import Trainer
from torch.multiprocessing.spawn import ProcessExitedException

from espnet_distopt.distributed.admission import start_together
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.distributed.launcher import announce_failure
from espnet_distopt.errors import STOPPED, InputError, did_you_mean
from espnet_distopt.espnet.models.padded_rnn import pad_rnn_encoders
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.training.batches import (
    UncutBatches,
    divides_batches,
    whole_batches,
)
from espnet_distopt.espnet.training.dataset import (
    tell_what_is_unreadable,
    without_workers_traceback,
)
from espnet_distopt.espnet.training.one_run import lock_of_run, run_in
from espnet_distopt.espnet.training.options import (
    Counting,
    check_gpus,
    gpus_of_machine,
    launched_rank,
    names_of_tasks,
    option_lines,
    settle,
)
from espnet_distopt.espnet.training.same_training import (
    describe_tokens,
    keep_to_one_training,
)
from espnet_distopt.espnet.training.trainer import DistoptTrainer
from espnet_distopt.optimizers.lamb import Lamb
from espnet_distopt.session import steps_alone


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
    sources: Callable[[argparse.Namespace], Sequence[Path]] = lambda args: (),
    elsewhere: str = "--tag NAME",
    batches: Counting | None = None,
) -> type[AbsTask]:
    """Return a subclass of `task` that trains with `DistoptTrainer`.

    Args:
        task: An ESPnet task class with one optimizer and ESPnet's common trainer.
        name: The name of the variable that the result is assigned to.
        module: The `__name__` of the module in which that happens.
        sources: Returns, for ESPnet's options, the files of which a training learns
            nothing else when it goes on. It raises InputError for unfit ones.
        elsewhere: The option by which a recipe trains in another directory.
        batches: Counts the batches of an epoch; None: those that ESPnet makes.

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
            # Else 270 lines of options stand before the one that says what is wrong.
            refuse = functools.partial(_refuse, parser)
            parser.error = refuse  # type: ignore[method-assign]
            return parser

        @classmethod
        def check_required_command_args(cls, args: argparse.Namespace) -> None:
            lacking = [name for name in args.required if getattr(args, name) is None]
            if lacking:  # ESPnet prints its help of 500 lines before it says so.
                raise InputError(f"--{', --'.join(lacking)} is required")

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
            with _first_of_machine_first():
                if args is None:
                    args = cls.get_parser().parse_args(cmd)
                settle(args, batches)
                check_classes(cls, args)
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
            try:
                with run_in(Path(args.output_dir)), without_workers_traceback():
                    super().main_worker(args)
            except InputError:
                raise  # Its one line is the last one before the launcher's.
            except Exception as error:
                announce_failure(error)
                raise

        @classmethod
        def check_task_requirements(cls, dataset: Any, *args: Any, **kw: Any) -> None:
            tell_what_is_unreadable(dataset)  # ESPnet shows each data set here.
            super().check_task_requirements(dataset, *args, **kw)

        @classmethod
        def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
            # It is the first thing that ESPnet does when there is a process group, and
            # before it writes. It also builds models to decode with, outside of a run.
            lock = lock_of_run()
            if lock is not None and args.collect_stats:
                describe_tokens(args)
            elif lock is not None:

                def decide() -> None:
                    lock.take()
                    choices, files = cls.class_choices_list, sources(args)
                    keep_to_one_training(args, choices, files, elsewhere)

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


def check_classes(task: type[AbsTask], args: argparse.Namespace) -> None:
    """Refuse options of the encoder, the optimizer and so on that its class has not.

    ESPnet would say so with a traceback, when the learners have met.

    Args:
        task: The task, which says what classes there are.
        args: ESPnet's options.

    Raises:
        InputError: `encoder_conf`, or another of its kind, has an unknown option.
    """
    kinds = {each.name: each.classes for each in task.class_choices_list}
    kinds |= {"optim": optim_classes, "scheduler": scheduler_classes}
    for name, classes in kinds.items():
        chosen = getattr(args, name, None)
        if chosen not in classes:
            continue
        known = inspect.signature(classes[chosen]).parameters
        if any(each.kind is each.VAR_KEYWORD for each in known.values()):
            continue
        for option in option_lines(vars(args), f"{name}_conf"):
            if option not in known:
                raise InputError(
                    f"{name}_conf has {option}, which {name}: {chosen} does not take"
                    f"{did_you_mean(option, known)}"
                )


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


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Raise InputError in the place of argparse's usage, with the nearest option."""
    unknown = re.match(r"unrecognized arguments: (--\S+)", message)
    known = re.findall(r"--\w+", parser.format_help())
    nearest = did_you_mean(unknown[1], known) if unknown else ""
    raise InputError(message + (nearest or " (--help lists all options)"))


def _offer_lamb() -> None:
    """Let `optim: lamb` name this package's LAMB.

    ESPnet looks optimizers up in a dictionary of its own. That has a LAMB already where
    torch_optimizer is installed, which then stays.
    """
    optim_classes.setdefault("lamb", Lamb)


def _texts(args: argparse.Namespace) -> list[Path]:
    return [Path(path) for path, *_ in args.train_data_path_and_name_and_type or ()]


DistoptASRTask = distopt_task(ASRTask, "DistoptASRTask", __name__)
DistoptLMTask = distopt_task(
    LMTask, "DistoptLMTask", __name__, sources=_texts, elsewhere="--expdir NAME"
)

_READY: dict[str, type[AbsTask]] = {"asr": DistoptASRTask, "lm": DistoptLMTask}


@functools.cache
def task(name: str) -> type[AbsTask]:
    """Return a task that trains with `DistoptTrainer`.

    Args:
        name: That of ESPnet's command, as `st` of `espnet2.bin.st_train`.

    Raises:
        InputError: ESPnet has no such task, it needs a package that is missing, or it
            has a trainer of its own.
    """
    if name not in (known := names_of_tasks()):
        raise InputError(f"ESPnet has no task {name}: expected {', '.join(known)}")
    if name in _READY:
        return _READY[name]
    module = f"espnet2.bin.{name}_train"
    try:
        with importing_espnet():
            command = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module} cannot be imported: {error}") from error
    (stock,) = (
        each
        for each in vars(command).values()
        if isinstance(each, type) and issubclass(each, AbsTask)
    )
    return distopt_task(stock, name, __name__)


def __getattr__(name: str) -> type[AbsTask]:
    """Find a task as a name of this module, as pickle does."""
    if name.startswith("_") or name not in names_of_tasks():
        raise AttributeError(name)
    return task(name)
