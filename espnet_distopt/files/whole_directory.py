"""Writes directories whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write


@contextmanager
def whole_directory(path: Path, marker: str = "wav.scp") -> Iterator[Path]:
    """Give a new directory that takes the place of `path` if the body succeeds.

    If the body fails or is interrupted, `path` is as it was and nothing is left over.

    Args:
        path: The directory to write. If it exists, it must be empty or hold the file
            `marker`.
        marker: The name of a file that the body writes, by which a later run knows that
            it may replace the directory.

    Raises:
        InputError: `path` holds something else, or cannot be written.
    """
    with explain_failed_write(path):
        _check_replaceable(path, marker)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            new = temporary / "new"
            new.mkdir()
            yield new
            if path.exists():
                os.replace(path, temporary / "old")
            os.replace(new, path)
        finally:
            shutil.rmtree(temporary)


def _check_replaceable(path: Path, marker: str) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, expected a directory or nothing")
    if path.is_dir() and any(path.iterdir()) and not (path / marker).exists():
        raise InputError(
            f"{path} is not empty and has no {marker}, so it is not replaced: "
            "move it away or choose another directory"
        )
