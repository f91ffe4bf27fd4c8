"""Schedules that are written in epochs, and counted in steps from the training data.

A schedule such as warm-up counts steps, but what a paper or a user means is epochs. How
many steps an epoch has depends on the data and on the batch size, so a number that is
right for 286 hours is wrong for 2,000. In `scheduler_conf` and `distopt_conf` a value
`10 epochs` (or `10epochs`, for a command line) stands for ten times the number of steps
of an epoch. The configuration that the training writes has the number, which stock
ESPnet reads.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.cutting import (
    batches_of,
    cutting_of,
    read_frames,
)

_EPOCHS = re.compile(r"(\d+\.?\d*) ?epochs?")


def count_epochs(args: argparse.Namespace, learners: int) -> None:
    """Replace the epochs in ESPnet's `scheduler_conf` and in `distopt_conf` by steps.

    Args:
        args: ESPnet's options, which are changed. Its files of shapes are read only if
            a value is in epochs.
        learners: The number of learners, each of which needs an utterance of a batch.

    Raises:
        InputError: A value is in epochs, and the batches of an epoch cannot be counted,
            or the options are no `option: value` lines.
    """
    steps = 0

    def counted() -> int:
        nonlocal steps
        # Statistics are collected before there are shapes, and need no schedule.
        steps = steps or (1 if args.collect_stats else steps_of_epoch(args, learners))
        return steps

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
    found = {
        name: _EPOCHS.fullmatch(value) if isinstance(value, str) else None
        for name, value in conf.items()
    }
    return {
        name: max(1, round(float(epochs[1]) * steps_of_epoch())) if epochs else value
        for (name, value), epochs in zip(conf.items(), found.values(), strict=True)
    }


def steps_of_epoch(args: argparse.Namespace, learners: int) -> int:
    """Return how many steps of the optimizer an epoch has, on each learner.

    The batches are those that ESPnet will make. To make them twice costs the reading of
    the shapes, which is some seconds for a million utterances.

    Raises:
        InputError: The batches are not a fixed list, or a file of shapes is missing.
    """
    if args.iterator_type == "chunk":
        batches = _batches_of_chunks(args, learners)
    elif args.num_iters_per_epoch is not None:
        batches = int(args.num_iters_per_epoch)
    elif args.iterator_type != "sequence" or args.multiple_iterator:
        raise InputError(
            "a schedule in epochs needs iterator_type: sequence or chunk, and no "
            "multiple_iterator: give the number of steps instead"
        )
    else:
        batches = len(list(_sampler(args, learners)))
    return max(1, batches // int(args.accum_grad))


def _batches_of_chunks(args: argparse.Namespace, learners: int) -> int:
    """Return how many batches the chunks of all utterances fill."""
    if args.num_iters_per_epoch is not None:
        raise InputError(
            "a schedule in epochs needs all chunks in each: leave num_iters_per_epoch "
            "out, or give the number of steps instead"
        )
    cutting = cutting_of(args.chunk_length, args.chunk_shift_ratio)
    frames = read_frames(args.train_shape_file)
    chunks = cutting.counts(np.fromiter(frames.values(), np.int64, len(frames))).sum()
    return batches_of(int(chunks), int(args.batch_size), learners)


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
