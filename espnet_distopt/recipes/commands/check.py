"""Check early what a recipe needs late: options, a model, GPUs, a test set's halves."""

import argparse
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet_distopt.algorithms import check_options
from espnet_distopt.bin.python import named_algorithm
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.espnet.training.command import find_task
from espnet_distopt.espnet.training.options import (
    check_gpus,
    gpus_needed,
    in_steps,
    option_lines,
)
from espnet_distopt.files.tables import read_table
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.recipes.commands.options import add_halves
from espnet_distopt.recipes.scoring.trn import members, parse_halves

_BEST = tuple(
    f"{phase}.{key}" for key in ("loss", "acc") for phase in ("train", "valid")
)
"""What ESPnet compares epochs by if `best_model_criterion` says nothing."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--config", type=Path, help="training configuration (YAML)")
    add("--distopt_config", type=Path, help="YAML with distopt and distopt_conf")
    add("--distopt", help="algorithm; overrides the files'")
    add("--nlearners", type=int, default=1, help="number of learners")
    add("--gpus", action="store_true", help="learners need a GPU each on this machine")
    add("--share_gpu", action="store_true", help="with --gpus: all share the first one")
    add("--model", help="model that the training must write, as valid.loss.ave.pth")
    add("--train_program", help="module of the training that --train_args is for")
    add("--train_args", default="", help="options of the training, in one word")
    add(
        "--text", type=Path, help="Kaldi `text` file of a test set, to check its halves"
    )
    add_halves(parser, "utterances whose id")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Check the options, and print nothing if they are good."""
    args = get_parser().parse_args(cmd)
    if args.text is not None:
        _check_halves(args.text, args.half)
    own, shared = (
        read_yaml(path) if path is not None else {}
        for path in (args.config, args.distopt_config)
    )
    if args.model is not None:
        _check_model(args.model, own)
    if args.gpus:
        number = 0 if args.share_gpu else own.get("local_rank")
        check_gpus(gpus_needed(args.nlearners, number))
    if args.train_program is not None:
        words = ["--config", str(args.config)] if args.config is not None else []
        own |= _parsed(args.train_program, [*words, *args.train_args.split()])
    name = named_algorithm({"distopt": args.distopt}, own, shared)
    if name is not None:
        _check_algorithm(name, args.nlearners, own, shared)


def _check_algorithm(
    name: str, learners: int, own: Mapping[str, Any], shared: Mapping[str, Any]
) -> None:
    # A training merges the two files in the same order.
    # Nobody knows yet how many steps an epoch has.
    confs = [option_lines(config, "distopt_conf") for config in (shared, own)]
    conf = in_steps({**confs[0], **confs[1]}, lambda: 1)
    check_options(name, conf, learners)


def _parsed(program: str, words: Sequence[str]) -> dict[str, Any]:
    """Return `distopt` and `distopt_conf` of a training's options.

    Args:
        program: the training's module. It imports ESPnet, which takes seconds.
        words: its options, behind its configuration.

    Raises:
        InputError: the training would refuse the options, hours later.
    """
    task = find_task(importlib.import_module(program).TASK)
    parser: argparse.ArgumentParser = task.get_parser()
    try:
        args = parser.parse_args(words)
    except InputError as error:
        raise InputError(f"--train_args: {error}") from None
    from espnet_distopt.espnet.training.tasks import check_classes  # imports ESPnet

    check_classes(task, args)
    return {name: vars(args)[name] for name in ("distopt", "distopt_conf")}


def _check_model(model: str, config: Mapping[str, Any]) -> None:
    """Refuse a model that a training with a configuration would not write.

    Args:
        model: the name of its file, as valid.loss.ave.pth. Names of another form, as
            latest.pth and 3epoch.pth, are not checked.
        config: the configuration of the training.

    Raises:
        InputError: epochs are not compared by what the name says.
    """
    named = re.fullmatch(r"(\w+\.\w+)\.(best|ave(_\d+best)?)\.pth", model)
    criteria = config.get("best_model_criterion")
    found = _BEST if criteria is None else [f"{c[0]}.{c[1]}" for c in criteria]
    if named is None or named[1] in found:
        return
    others = " or ".join(f"{each}.{named[2]}.pth" for each in found)
    raise InputError(
        f"the training will not write the model {model}, because its "
        f"best_model_criterion has no {named[1].replace('.', ' ')}: take {others}"
    )


def _check_halves(text: Path, arguments: Sequence[str]) -> None:
    """Raise InputError if scoring would find no utterance for one of the halves."""
    ids = list(read_table(text, str))
    for name, pattern in parse_halves(arguments).items():
        try:
            members(name, pattern, ids)
        except InputError as error:
            raise InputError(f"{text}: {error} (--halves of a recipe)") from None


if __name__ == "__main__":
    main()
