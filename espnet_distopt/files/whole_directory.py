"""Writes directories whole or not at all."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write


@contextmanager
def whole_directory(path: Path, marker: str = "wav.scp") -> Iterator[Path]:
    """Give a new directory that takes the place of `path` if the body succeeds.

    If the body fails or is interrupted, by Ctrl-C or SIGTERM, `path` is as it was and
    nothing is left over. If `path` is a symbolic link, as to another disk, it stays
    one, and the directory that it names is written.

    Args:
        path: The directory to write. If it exists, it must be empty or hold the file
            `marker`.
        marker: The name of a file that the body writes, by which a later run knows that
            it may replace the directory.

    Raises:
        InputError: `path` holds something else, or cannot be written.
    """
    with explain_failed_write(path), _ended_by_sigterm():
        path = path.resolve() if path.is_symlink() else path
        _check_replaceable(path, marker)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        new, old = temporary / "new", temporary / "old"
        try:
            new.mkdir()
            yield new
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
        finally:
            if old.exists() and not path.exists():
                os.replace(old, path)
            shutil.rmtree(temporary)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, by which recipes end their commands, raise SystemExit in the body.

    By default it ends a process on the spot, without any cleaning up. A program that
    has a handler of its own keeps it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # A second one would end the cleaning up.
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check_replaceable(path: Path, marker: str) -> None:
    if path.is_dir() and (path.is_mount() or path.samefile(Path.cwd())):
        raise InputError(
            f"{path} is the current directory or a mounted one, which nothing can take "
            "the place of: choose a directory in it"
        )
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, expected a directory or nothing")
    if path.is_dir() and any(path.iterdir()) and not (path / marker).exists():
        raise InputError(
            f"{path} is not empty and has no {marker}, so it is not replaced: "
            "move it away or choose another directory"
        )
