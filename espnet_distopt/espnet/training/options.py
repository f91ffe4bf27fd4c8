"""The `distopt` options in ESPnet's parser, and their check before anything runs."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet2.train.distributed_utils import get_num_nodes, get_world_size
from espnet2.train.trainer import TrainerOptions
from espnet2.utils.nested_dict_action import NestedDictAction
from espnet2.utils.types import str_or_none

from espnet_distopt.algorithms import names
from espnet_distopt.algorithms.training_options import check_options
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.epoch_steps import count_epochs, option_lines
from espnet_distopt.espnet.training.gpus import gpus_needed
from espnet_distopt.files.yaml import read_yaml


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--distopt`, `--distopt_conf` and `--distopt_config` to ESPnet's parser."""
    group = parser.add_argument_group("distopt: asynchronous and local training")
    group.add_argument(
        "--distopt",
        type=str_or_none,
        default=None,
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


def settle(args: argparse.Namespace) -> None:
    """Complete ESPnet's options and check them before anything runs.

    `distopt` and `distopt_conf` are filled from the file `distopt_config`. Schedules in
    epochs become steps. Learners on CPUs communicate by gloo.

    Raises:
        InputError: The algorithm or an option is unknown, a value has the wrong type,
            the number of learners is impossible, a learner would have several GPUs, an
            option is of DDP, or early stopping looks at a figure that the learners do
            not share.
    """
    if args.distopt_config is not None:
        content = read_distopt_config(Path(args.distopt_config))
        args.distopt = args.distopt or content.get("distopt")
        confs = [option_lines(each, "distopt_conf") for each in (content, vars(args))]
        args.distopt_conf = {**confs[0], **confs[1]}
    if args.ngpu == 0 and args.dist_backend == "nccl":
        args.dist_backend = "gloo"
    count_epochs(args, number_of_learners(args))
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
    if args.multiprocessing_distributed and args.ngpu > 1:
        nodes = get_num_nodes(args.dist_world_size, args.dist_launcher)
        return int(nodes * args.ngpu)
    return int(get_world_size(args.dist_world_size, args.dist_launcher))


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank that the launcher gave this process, 0 without a launcher."""
    return int(environment.get("RANK", environment.get("SLURM_PROCID", "0")))
