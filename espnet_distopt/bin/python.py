"""Run Python, and train by the algorithm that a training's configuration names.

The recipes of ESPnet start each of their programs by the command in their option
`--python`. So they train with the algorithms, unchanged, by

    ./run.sh --python distopt-python --asr_config conf/train_adpsgd.yaml --ngpu 4

This command is Python in all but one case: where `espnet2.bin.asr_train`, or the
training of another task, is to run with options of this package (in the configuration,
or as `--distopt`), it runs `espnet_distopt.bin.espnet_train` in its place. Trainings on
one machine are then started by `distopt launch`, with one learner for each of `--ngpu`
GPUs. DISTOPT_LAUNCH has more options of the launcher, as in

    DISTOPT_LAUNCH="--restarts 3" ./run.sh --python distopt-python ...

With `--nproc` among them, learners train on CPUs, too, or several on a GPU. On several
nodes it is ESPnet that starts the learners, and nobody starts a dead one again.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.yaml import read_yaml

TRAINING = re.compile(r"espnet2\.bin\.(\w+)_train")
OURS = ["-m", "espnet_distopt.bin.espnet_train"]
FILES = ("distopt_config", "config")
"""Options that name files with options, of which the latter goes before the former."""

STARTED = ("dist_rank", "dist_world_size", "dist_launcher")
"""Options by which ESPnet says that it starts, or has started, the learners."""

TRUE = ("true", "yes", "on", "t", "y", "1")
"""What ESPnet reads as true."""


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Become the process that the words ask for."""
    words = sys.argv[1:] if cmd is None else list(cmd)
    os.execv(sys.executable, [sys.executable, *command(words, os.environ)])


def command(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return what Python is to run in the place of these words.

    Raises:
        InputError: the configuration, or DISTOPT_LAUNCH, cannot be read.
    """
    words, training = list(words), None
    if words[:1] == ["-m"] and len(words) > 1:
        training = TRAINING.fullmatch(words[1])
    if training is None:
        return words
    arguments = words[2:]
    options = _options(arguments)
    if not any(name.startswith("distopt") for name in options):
        return words
    ours = [*OURS, training[1], *arguments]
    asked_for = environment.get("DISTOPT_LAUNCH", "")
    try:
        launch = shlex.split(asked_for)
    except ValueError as error:  # a quotation without an end
        raise InputError(f"DISTOPT_LAUNCH={asked_for}: {error}") from None
    asked = str(options.get("ngpu"))  # ESPnet refuses what is no number.
    gpus = int(asked) if asked.isdecimal() else 0
    if not (launch or gpus > 1) or not _starts_learners(options):
        return ours
    launch = ["-m", "espnet_distopt.bin.launch", "--nproc", str(gpus), *launch]
    own = ["--ngpu", str(min(gpus, 1)), "--multiprocessing_distributed", "false"]
    return [*launch, *ours, *own]


def named_algorithm(*sources: Mapping[str, Any]) -> str | None:
    """Return the algorithm that a training names; None is stock training.

    The source of options that goes before others comes first.
    """
    found = [source["distopt"] for source in sources if source.get("distopt")]
    return str(found[0]) if found and found[0] != "none" else None


def _starts_learners(options: Mapping[str, Any]) -> bool:
    """Return whether the command trains by an algorithm, and none of many processes."""
    only_statistics = str(options.get("collect_stats")).lower() in TRUE
    started = any(options.get(name) is not None for name in STARTED)
    return named_algorithm(options) is not None and not only_statistics and not started


def _options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what the command line of a training says, over its files."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in (*FILES, "distopt", "collect_stats", "ngpu", *STARTED):
        parser.add_argument(f"--{name}")
    words = vars(parser.parse_known_args(arguments)[0])
    options: dict[str, Any] = {}
    for name in FILES:
        if words[name] is not None:
            options |= read_yaml(Path(words[name]))
    return options | {name: each for name, each in words.items() if each is not None}


if __name__ == "__main__":
    main()
