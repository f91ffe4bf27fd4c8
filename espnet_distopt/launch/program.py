"""The program that each learner runs, from the words of the command line."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError


def split(words: Sequence[str], flags: set[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's own options, and the words of the program.

    The program begins after `--`, at `-m`, or at the first word that is neither an
    option nor the value of one.

    Args:
        words: the command line.
        flags: the options that have no value.

    Example:
        >>> split(["--nproc", "2", "-m", "a.b", "--lr", "1"], set())
        (['--nproc', '2'], ['-m', 'a.b', '--lr', '1'])
    """
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        at += 1 if "=" in word or word in flags else 2
    return list(words[:at]), list(words[at:])


def resolve(words: Sequence[str]) -> list[str]:
    """Return the command that runs the program.

    `-m MODULE` and `FILE.py` are run by this Python; anything else is a program.

    Raises:
        InputError: there is no program, or no such file.
    """
    if not words or list(words) == ["-m"]:
        raise InputError(
            "no program to launch: expected -m MODULE, SCRIPT.py or a program, "
            "with its arguments"
        )
    first = words[0]
    if first == "-m":
        return [sys.executable, *words]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise InputError(f"{first}: no such file (in {os.getcwd()})")
        return [sys.executable, *words]
    found = shutil.which(first)
    if found is None:
        raise InputError(
            f"{first}: command not found; a module of Python needs -m before it"
        )
    return [found, *words[1:]]
