"""Finds files on the LDC's discs, whichever way the discs were copied."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from espnet_distopt.corpora.audio.sphere import read_header
from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.errors import InputError

OVERSHOOT = 0.5
"""Seconds by which a transcriber's end may pass the recording's; it is then cut."""


def find_files(root: Path, pattern: str) -> list[Path]:
    """Return all files below `root` whose name matches, sorted; links are followed.

    Args:
        root: A disc, or a directory that holds several.
        pattern: A regular expression for the whole name; case doesn't matter.

    Raises:
        InputError: No directory `root` exists.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no such directory")
    matches = re.compile(pattern, re.IGNORECASE).fullmatch
    return sorted(
        Path(directory, name)
        for directory, _, names in os.walk(root, followlinks=True)
        for name in names
        if matches(name)
    )


def find_file(root: Path, pattern: str, what: str) -> Path:
    """Return the one file below `root` whose name matches.

    Args:
        root: A disc, or a directory that holds several.
        pattern: A regular expression for the whole name; case doesn't matter.
        what: What the file is, for messages.

    Raises:
        InputError: No such file exists, or more than one.
    """
    found = find_files(root, pattern)
    if not found:
        raise InputError(f"{root}: no {what} (a file named like {pattern}) below it")
    if len(found) > 1:
        raise InputError(f"{root}: two files are the {what}: {found[0]} and {found[1]}")
    return found[0]


def name_recordings(
    paths: Iterable[Path], losses: Losses | None = None
) -> dict[str, Path]:
    """Return recordings by their names: file names in lower case, without the suffix.

    Args:
        paths: The files; of several with one name, the first is taken.
        losses: Gets the others; None makes them an error.

    Raises:
        InputError: Two files have the same name, and none may be left out.
    """
    losses = losses or Losses("files")
    recordings: dict[str, Path] = {}
    for path in paths:
        name = path.stem.lower()
        if name in recordings:
            losses.add(f"{path}: a copy of it is at {recordings[name]}; keep one")
        else:
            recordings[name] = path
            losses.kept += 1
    return recordings


def call_seconds(path: Path) -> float:
    """Return the length of a telephone recording in seconds, from its header.

    Raises:
        InputError: The file is not SPHERE, or has not two channels of 8 kHz.
    """
    header = read_header(path)
    if header.channels != 2 or header.sample_rate != 8000:
        raise InputError(
            f"{path}: expected 2 channels of 8000 Hz, got {header.channels} of "
            f"{header.sample_rate} Hz"
        )
    return header.seconds
