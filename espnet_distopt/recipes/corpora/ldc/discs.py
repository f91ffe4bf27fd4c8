"""Finds files on the LDC's discs, and counts what is left out because it is damaged.

Nobody can mend the discs, so one bad line must not stop a user who has 2,000 hours of
good ones. But where much is bad, it is more likely that the paths are wrong.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import read_header

MAX_LOST = 1.0
"""How much may be left out by default, in percent."""


class Losses:
    """The parts of one kind that were left out, and how many were kept.

    Args:
        what: What the parts are, in the plural, for messages.
        most: How much may be left out, in percent; 0 makes the first one an error.

    Attributes:
        kept: The number of parts that were kept; whoever reads them adds to it.
    """

    def __init__(self, what: str, most: float = 0.0) -> None:
        self.kept = 0
        self._what = what
        self._most = most
        self._lost = 0
        self._first = ""

    def add(self, why: InputError | str) -> None:
        """Leave a part out.

        Raises:
            InputError: Nothing may be left out.
        """
        self._lost += 1
        self._first = self._first or str(why)
        if self._most <= 0:
            raise InputError(str(why))

    def check(self, log: Callable[[str], None]) -> None:
        """Tell how many parts were left out, if any were.

        Raises:
            InputError: More were left out than may be; the message has the first one.
        """
        if not self._lost:
            return
        counts = f"{self._lost} of {self._lost + self.kept} {self._what}"
        if 100 * self._lost > self._most * (self._lost + self.kept):
            raise InputError(
                f"{self._first} ({counts} are bad, more than {self._most:g} %: check "
                "the paths, or leave them out with --max_lost 100)"
            )
        log(f"left out: {counts}, the first: {self._first}")


OVERSHOOT = 0.5
"""Seconds by which a transcriber's end may pass the recording's; it is then cut."""


def find_files(root: Path, pattern: str) -> list[Path]:
    """Return all files below `root`, sorted, whose whole name matches in any case.

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
    """Return the one file below `root` whose whole name matches in any case.

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

    Of several files with one name, the first is taken, and `losses` gets the others;
    None makes them an error.

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
