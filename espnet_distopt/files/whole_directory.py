"""Writes directories whole or not at all.

A directory is written beside the one that it replaces, in a hidden one of a random
name. Who writes it holds a lock in there, which the operating system frees when the
process ends. So the next run knows what a kill has left, and removes it.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from types import FrameType

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write

_NEW, _OLD, _LOCK = "new", "old", "lock"
"""What the hidden directory has: the new and the old directory, and the locked file."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""By the first recipes end their commands, and by the second Slurm requeues a job."""


@contextmanager
def whole_directory(path: Path, marker: str = "wav.scp") -> Iterator[Path]:
    """Give a new directory that takes the place of `path` if the body succeeds.

    If the body fails or is interrupted, by Ctrl-C, SIGTERM or SIGUSR1, `path` is as it
    was and nothing is left over. What is left after a kill is removed by the next call
    for the same `path`. If `path` is a symbolic link, as to another disk, it stays one,
    and the directory that it names is written.

    Args:
        path: The directory to write. If it exists, it must be empty or hold the file
            `marker`.
        marker: The name of a file that the body writes, by which a later run knows that
            it may replace the directory.

    Raises:
        InputError: `path` holds something else, or cannot be written.
    """
    with explain_failed_write(path), _ended_by_signals():
        path = path.resolve() if path.is_symlink() else path
        _check_replaceable(path, marker)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        with _hidden(path) as hidden:
            new, old = hidden / _NEW, hidden / _OLD
            new.mkdir()
            yield new
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)


@contextmanager
def _hidden(path: Path) -> Iterator[Path]:
    """Give a hidden directory beside `path`, locked until the body has ended."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    unlocked = hidden / "unlocked"
    try:
        with unlocked.open("w") as lock:
            # Where the file system has no locks, no other run gets this one either.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(unlocked, hidden / _LOCK)
            try:
                yield hidden
            finally:
                _clear(hidden, path)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _remove_left(path: Path) -> None:
    """Remove the hidden directories beside `path` whose processes were killed."""
    # `mkdtemp` adds eight characters. A file of NFS is gone only when it is closed.
    for lock in path.parent.glob(f".{escape(path.name)}.????????/{_LOCK}"):
        with suppress(OSError):  # such as: its process lives, or is another user's
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(lock.parent, path)
            shutil.rmtree(lock.parent)


def _clear(hidden: Path, path: Path) -> None:
    """Remove the two directories in a hidden one, or put the old one back."""
    if (hidden / _OLD).exists() and not path.exists():
        os.replace(hidden / _OLD, path)  # The end came between the two renamings.
    for name in (_NEW, _OLD):
        if (hidden / name).exists():
            shutil.rmtree(hidden / name)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let each of `_SIGNALS` raise SystemExit in the body.

    By default they end a process on the spot, without any cleaning up. A program that
    has a handler of its own keeps it.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [n for n in _SIGNALS if main and signal.getsignal(n) == signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in ours:  # A second one would end the cleaning up.
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


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
