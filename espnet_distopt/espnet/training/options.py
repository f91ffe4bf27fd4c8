"""The options of a training: `distopt`'s in ESPnet's parser, and checks of them all.

The checks come before anything runs. Nothing here imports ESPnet before it must: a
command that only checks options does without it, since its import takes seconds.
"""

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.algorithms import check_options, names, options
from espnet_distopt.algorithms.options import algorithm_options
from espnet_distopt.errors import InputError
from espnet_distopt.files.yaml import read_yaml

_UNSAID = ""
"""The algorithm of somebody who has not named one. Who says `none` may keep options."""

_EPOCHS = re.compile(r"(\d+\.?\d*) ?epochs?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--distopt`, `--distopt_conf` and `--distopt_config` to ESPnet's parser."""
    from espnet2.utils.nested_dict_action import NestedDictAction
    from espnet2.utils.types import str_or_none

    group = parser.add_argument_group("distopt: asynchronous and local training")
    group.add_argument(
        "--distopt",
        type=str_or_none,
        default=_UNSAID,
        help=f"The algorithm, one of: {', '.join(names())}; none is stock ESPnet",
    )
    group.add_argument(
        "--distopt_conf",
        action=NestedDictAction,
        default={},
        help="The algorithm's options, and heartbeat_seconds: the seconds of silence "
        "after which a learner counts as lost (30)",
    )
    group.add_argument(
        "--distopt_config",
        type=str_or_none,
        default=None,
        help="A YAML file with distopt and distopt_conf, for use beside --config",
    )


def read_distopt_config(path: Path) -> dict[str, Any]:
    """Return `distopt` and `distopt_conf` from a YAML file.

    Raises:
        InputError: There is no such file, it is not YAML, or it has other keys.
    """
    content = read_yaml(path)
    if not {"distopt", "distopt_conf"}.issuperset(content):
        raise InputError(f"{path}: expected only the keys distopt and distopt_conf")
    return content


_OF_START = {
    "batch_type": "folded",
    "batch_size": 20,
    "batch_bins": 1000000,
    "accum_grad": 1,
    "dist_world_size": None,
    "dist_rank": None,
    "output_dir": None,
    "dist_launcher": None,
    "multiprocessing_distributed": False,
}
"""ESPnet's defaults of the options by which `check_early` says what begins."""


def check_early(cmd: Sequence[str] | None = None) -> None:
    """Refuse what is wrong in an algorithm's options before ESPnet is imported.

    That takes seconds. `settle` checks all of it again, with the number of learners.
    Only the first learner of a machine looks, so that a mistake is told once. The first
    learner of all says what begins.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    parser.add_argument("--config", type=Path)
    for name, default in _OF_START.items():
        parser.add_argument(f"--{name}", default=default)
    first, _ = parser.parse_known_args(cmd)
    named = None
    if first.config is not None:
        content = read_yaml(first.config)
        named = content.get("distopt")
        known = vars(first).keys() & content.keys()
        parser.set_defaults(**{key: content[key] for key in known})
    args, _ = parser.parse_known_args(cmd)
    _complete(args)
    if args.distopt is not None:
        conf = in_steps(option_lines(vars(args), "distopt_conf"), lambda: 1)
        try:
            options(args.distopt, algorithm_options(conf))
        except InputError as error:
            if named in (None, args.distopt):
                raise
            raise InputError(
                f"{error} ({first.config} has distopt: {named}, and perhaps options of "
                "it: leave them out there, or give another file)"
            ) from None
    by_espnet = str(args.multiprocessing_distributed).lower() not in ("false", "no")
    if args.output_dir is None or args.dist_launcher or by_espnet:
        return  # ESPnet counts the learners that it starts.
    if int(args.dist_rank or launched_rank()) == 0:
        print(_in_words(args), flush=True)


def _in_words(args: argparse.Namespace) -> str:
    """Return which learners train by what, and what each has of a batch."""
    learners = int(os.environ.get("WORLD_SIZE", args.dist_world_size or 1))
    stock = "DDP" if learners > 1 else "stock ESPnet"
    text = f"{learners} learner{'s' * (learners > 1)} by {args.distopt or stock}"
    bins = args.batch_type in ("numel", "length")
    name = "batch_bins" if bins else "batch_size"
    number = str(getattr(args, name))
    if number.isdecimal():  # ESPnet refuses what is no number.
        text += f", {name} {int(number) // learners}{' each' * (learners > 1)}"
    if str(args.accum_grad) != "1":
        text += f", accum_grad {args.accum_grad}"
    return text


def _complete(args: argparse.Namespace) -> None:
    """Fill `distopt` and `distopt_conf` from the file `distopt_config`.

    Raises:
        InputError: The file is wrong, or there are options of no algorithm.
    """
    if args.distopt_config is not None:
        content = read_distopt_config(Path(args.distopt_config))
        args.distopt = args.distopt or content.get("distopt")
        confs = [option_lines(each, "distopt_conf") for each in (content, vars(args))]
        args.distopt_conf = {**confs[0], **confs[1]}
    if not isinstance(args.distopt, str | None):
        raise InputError(f"distopt: expected one name, not {args.distopt!r}")
    if args.distopt == _UNSAID:
        args.distopt = None
        if args.distopt_conf:
            raise InputError(
                f"distopt_conf has {', '.join(args.distopt_conf)}, and no distopt says "
                "of which algorithm: add distopt (none: stock ESPnet), or leave it out"
            )


Counting = Callable[[argparse.Namespace, int], int]
"""Returns the number of batches in an epoch, for ESPnet's options and the learners."""


def settle(args: argparse.Namespace, batches: Counting | None = None) -> None:
    """Complete ESPnet's options, and raise InputError for what cannot be trained.

    `distopt` and `distopt_conf` are filled from the file `distopt_config`. Schedules in
    epochs become steps, by `batches` of an epoch. Learners on CPUs communicate by gloo.
    An algorithm that has one learner only is told on stderr.
    """
    _complete(args)
    if args.ngpu == 0 and args.dist_backend == "nccl":
        args.dist_backend = "gloo"
    count_epochs(args, number_of_learners(args), batches)
    if args.distopt is None or args.collect_stats:
        return
    for name in ("use_deepspeed", "sharded_ddp", "ddp_comm_hook"):
        if getattr(args, name, None):
            raise InputError(
                f"{name}: it changes how DDP trains, and distopt trains in the place "
                f"of DDP: leave out either {name} or distopt"
            )
    if args.ngpu > 1 and not args.multiprocessing_distributed:
        raise InputError(
            f"--ngpu {args.ngpu} makes one learner of {args.ngpu} GPUs, and distopt "
            "trains on one GPU each: add --multiprocessing_distributed true, or give "
            "--ngpu 1 to each of several processes"
        )
    size = number_of_learners(args)
    check_options(args.distopt, args.distopt_conf, size)
    if size == 1:
        print(
            f"{args.distopt} has one learner, and trains as without an algorithm: "
            f"`distopt launch --nproc 2 {_this_program()} ...` starts two",
            file=sys.stderr,
            flush=True,
        )
    shared = {
        "patience": args.patience is not None and args.early_stopping_criterion,
        "val_scheduler_criterion": args.val_scheduler_criterion,
    }
    for name, criterion in shared.items():
        if size > 1 and criterion and criterion[0] == "train":
            raise InputError(
                f"{name} looks at train.{criterion[1]}, which differs between learners "
                f"under distopt; use valid.{criterion[1]}"
            )


def _this_program() -> str:
    """Return what `distopt launch` must be told to run what runs here."""
    name, spec = sys.argv[0], sys.modules["__main__"].__spec__
    if name.startswith("distopt "):
        words = ["-m", "espnet_distopt", name.removeprefix("distopt ")]
    else:
        words = ["-m", spec.name] if spec is not None else [name]
    task = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return " ".join([*words, *task])


def gpus_of_machine(
    args: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> int:
    """Return how many GPUs this machine must have for its learners."""
    if args.ngpu == 0:
        return 0
    learners = max(int(args.ngpu), int(environment.get("LOCAL_WORLD_SIZE", "1")))
    return gpus_needed(learners, args.local_rank)


def number_of_learners(args: argparse.Namespace) -> int:
    """Return the number of processes that will train, one for each learner."""
    from espnet2.train.distributed_utils import get_num_nodes, get_world_size

    if args.multiprocessing_distributed and args.ngpu > 1:
        nodes = get_num_nodes(args.dist_world_size, args.dist_launcher)
        return int(nodes * args.ngpu)
    return int(get_world_size(args.dist_world_size, args.dist_launcher))


def names_of_tasks() -> list[str]:
    """Return the names of ESPnet's tasks, of those with a trainer of their own, too."""
    spec = importlib.util.find_spec("espnet2.bin")
    assert spec is not None
    folders = map(Path, spec.submodule_search_locations or ())
    found = {path.stem for each in folders for path in each.glob("*_train.py")}
    return sorted(name.removesuffix("_train") for name in found - {"lightning_train"})


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank that the launcher gave this process, 0 without a launcher."""
    return int(environment.get("RANK", environment.get("SLURM_PROCID", "0")))


# Schedules in epochs
#
# A schedule such as warm-up counts steps, but what a paper or a user means is epochs.
# How many steps an epoch has depends on the data and on the batch size, so a number
# that is right for 286 hours is wrong for 2,000. In `scheduler_conf` and `distopt_conf`
# a value `10 epochs` (or `10epochs`, for a command line) stands for ten times the
# number of steps of an epoch. The configuration that the training writes has the
# number, which stock ESPnet reads.


def count_epochs(
    args: argparse.Namespace, learners: int, batches: Counting | None = None
) -> None:
    """Replace the epochs in ESPnet's `scheduler_conf` and in `distopt_conf` by steps.

    ESPnet's files of shapes are read only if a value is in epochs.

    Args:
        args: ESPnet's options, which are changed.
        learners: The number of learners, each of which needs an utterance of a batch.
        batches: Counts the batches of an epoch; None: those that ESPnet makes.
    """
    steps = 0

    def counted() -> int:
        nonlocal steps
        # Statistics are collected before there are shapes, and need no schedule.
        if not steps and not args.collect_stats:
            count = (batches or batches_of_epoch)(args, learners)
            steps = count // int(args.accum_grad)
        return max(1, steps)

    for name in ("scheduler_conf", "distopt_conf"):
        conf = option_lines(vars(args), name)
        setattr(args, name, in_steps(conf, counted))


def option_lines(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options that a configuration has under a name, if it has any.

    A key without a value is None.

    Raises:
        InputError: They are something else than `option: value` lines.
    """
    conf = config.get(name)
    if conf is None:
        return {}
    if not isinstance(conf, dict):
        raise InputError(f"{name} must be `option: value` lines, not {conf!r}")
    return conf


def in_steps(
    conf: Mapping[str, Any], steps_of_epoch: Callable[[], int]
) -> dict[str, Any]:
    """Return options with each `N epochs` as a number of steps, at least one.

    >>> in_steps({"warmup": "2 epochs", "gamma": 0.5}, lambda: 905)
    {'warmup': 1810, 'gamma': 0.5}
    """

    def counted(value: Any) -> Any:
        epochs = _EPOCHS.fullmatch(value) if isinstance(value, str) else None
        return max(1, round(float(epochs[1]) * steps_of_epoch())) if epochs else value

    return {name: counted(value) for name, value in conf.items()}


def batches_of_epoch(args: argparse.Namespace, learners: int) -> int:
    """Return how many batches an epoch has on each learner.

    The batches are those that ESPnet will make. To make them twice costs the reading of
    the shapes, which is some seconds for a million utterances.

    Raises:
        InputError: The batches are not a fixed list, or a file of shapes is missing.
    """
    if args.num_iters_per_epoch is not None and args.iterator_type != "chunk":
        return int(args.num_iters_per_epoch)
    if args.iterator_type != "sequence" or args.multiple_iterator:
        raise InputError(
            "a schedule in epochs needs iterator_type: sequence (chunk in a hybrid "
            "system), and no multiple_iterator: give the number of steps instead"
        )
    return len(list(_sampler(args, learners)))


def _sampler(args: argparse.Namespace, learners: int) -> Any:
    # A command that only checks options needs no ESPnet, whose import takes seconds.
    from espnet2.samplers.build_batch_sampler import build_batch_sampler

    try:
        return build_batch_sampler(
            type=args.batch_type,
            shape_files=args.train_shape_file,
            fold_lengths=args.fold_length,
            batch_size=args.batch_size,
            batch_bins=args.batch_bins,
            sort_in_batch=args.sort_in_batch,
            sort_batch=args.sort_batch,
            drop_last=args.drop_last_iter,
            # ESPnet reads its option only where one process trains.
            min_batch_size=learners if learners > 1 else args.min_batch_size,
            utt2category_file=_categories(args),
        )
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise InputError(
            f"a schedule in epochs needs the shapes of the training set: {error}"
        ) from None


def _categories(args: argparse.Namespace) -> str | None:
    """Return the file beside the data by which ESPnet divides utterances, if any."""
    for path, *_ in args.train_data_path_and_name_and_type[:1]:
        file = Path(path).parent / "utt2category"
        return str(file) if file.exists() else None
    return None


# GPUs, of which each learner has one


def gpus_needed(learners: int, local_rank: int | None) -> int:
    """Return how many GPUs a machine must have for its learners.

    With `local_rank` they share the GPU of that number, from 0.
    """
    return learners if local_rank is None else int(local_rank) + 1


def check_gpus(needed: int) -> None:
    """Raise InputError for learners without a GPU: CUDA speaks of invalid ordinals."""
    there = torch.cuda.device_count()
    if there == 0:
        raise InputError(
            "--ngpu asks for a GPU, and PyTorch sees none. nvidia-smi says whether "
            "there is one, and python -c 'import torch; print(torch.version.cuda)' "
            "whether PyTorch was built for it; --ngpu 0 trains on the CPU"
        )
    if needed > there:
        own = ""
        if there == 1 and "SLURM_PROCID" in os.environ:
            own = "if each task of the Slurm step has a GPU of its own (srun "
            own += "--gpus-per-task=1), add --local_rank 0; if not, "
        raise InputError(
            f"{needed} learners on this machine need a GPU each, and PyTorch sees "
            f"{there}: {own}start "
            "fewer, or let all share the first, to try things, by --share_gpu true "
            "(of a recipe or `distopt launch`) or --local_rank 0 --dist_backend gloo"
        )
