"""The command of a training, the same for each task of ESPnet.

Each has a module, for its name and its docstring, which is the help of `distopt`.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from espnet_distopt.distributed import slurm_step
from espnet_distopt.errors import Main, one_line_errors
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.training.options import check_early


def training_command(place: str) -> tuple[Callable[[], argparse.ArgumentParser], Main]:
    """Return `get_parser` and `main` of the command that trains a task.

    Args:
        place: The task's module and name, as `espnet2.tasks.asr:ASRTask`. ESPnet is
            imported, which takes seconds, once the options have been checked. The
            command's module has it as TASK.
    """

    def get_parser() -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = find_task(place).get_parser()
        return parser

    @one_line_errors
    def main(cmd: Sequence[str] | None = None) -> None:
        train(place, cmd)

    return get_parser, main


def train(place: str, cmd: Sequence[str] | None, *names: str) -> None:
    """Train a task; with `names`, what is at the place returns it for them.

    Raises:
        InputError: An option is wrong, or the training cannot be made.
    """
    slurm_step.apply(cmd)
    check_early(cmd)
    task = find_task(place)
    (task(*names) if names else task).main(cmd=cmd)


def find_task(place: str) -> Any:
    """Return what is at a place, `module:name`. ESPnet is imported."""
    module, _, name = place.partition(":")
    with importing_espnet():
        return getattr(importlib.import_module(module), name)
