"""A lock that lets one run at a time train in an experiment's directory.

Two runs would write the same checkpoints, and each would read those of the other.
"""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from espnet_distopt.errors import InputError

LOCK = "run.lock"
"""The name of the locked file in the directory."""


class RunLock:
    """The lock on an experiment's directory, which one learner holds for all.

    Args:
        output_dir: The directory, which is made if it is missing.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._files: list[int] = []

    def take(self) -> None:
        """Lock the directory.

        Raises:
            InputError: Another run holds it.
        """
        self._files.append(_acquire(self._output_dir))

    def take_over(self) -> None:
        """Lock the directory when the learner that held it has died.

        It logs a warning if that fails: a learner that was only stopped still has it.
        """
        try:
            self.take()
        except InputError as error:
            logging.warning(f"the lock is not this learner's: {error}")

    def free(self) -> None:
        """Unlock the directory, if this learner holds it."""
        while self._files:
            os.close(self._files.pop())


@contextmanager
def only_run(output_dir: Path, joins: bool = False) -> Iterator[RunLock]:
    """Be the only run in a directory while the body runs.

    The value of the `with` is the lock, for another learner to take it over when
    learner 0 has died.

    All learners call this. Learner 0 holds the lock for all of them, and none enters
    the body before learner 0 holds it. The operating system frees the lock when the
    process ends, however it ends.

    A second run on the same machine is always refused. One on another machine is
    refused if the directory's file system shares locks, as NFS with its lock service
    does. On a file system without locks, a warning is logged and nothing is refused.

    Args:
        output_dir: The directory, which is made if it is missing. The locked file stays
            there afterwards; without a lock on it, it means nothing.
        joins: Whether this learner joins a run whose lock another one holds. It then
            waits for nobody.

    Raises:
        InputError: On learner 0, if another run holds the directory. The message names
            that run's process and host.
        SystemExit: On the other learners in that case, so that the message appears
            once.
    """
    group = dist.is_initialized()
    rank = dist.get_rank() if group else 0
    lock = RunLock(output_dir)
    refusal: list[InputError | None] = [None]
    if rank == 0 and not joins:
        try:
            lock.take()
        except InputError as error:
            refusal = [error]
    try:
        if group and not joins:
            dist.broadcast_object_list(refusal, src=0)
        if refusal[0] is not None:
            raise refusal[0] if rank == 0 else SystemExit(2)
        yield lock
    finally:
        lock.free()


def refuse_if_taken(output_dir: Path) -> None:
    """Raise InputError if a run holds the directory, without locking it.

    Every learner calls this before ESPnet writes the run's configuration there.
    """
    try:
        file = os.open(output_dir / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise _taken(output_dir, file) from None
    except OSError:
        return  # The file system has no locks; `only_run` warns of that.
    finally:
        os.close(file)


def _taken(output_dir: Path, file: int) -> InputError:
    holder = os.pread(file, 1000, 0).decode("utf-8", "replace").strip()
    return InputError(
        f"{output_dir}: another run trains there ({holder or 'just started'}): "
        "wait for it, stop it, or take another --output_dir"
    )


def _acquire(output_dir: Path) -> int:
    """Lock the directory, and return the open file whose closing unlocks it."""
    output_dir.mkdir(parents=True, exist_ok=True)
    file = os.open(output_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # A lock by `lockf` belongs to this process alone. The data loader's processes
        # would inherit one by `flock`, and they outlive a kill by seconds.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        taken = _taken(output_dir, file)
        os.close(file)
        raise taken from None
    except OSError as error:
        logging.warning(
            f"{output_dir / LOCK}: no lock on this file system ({error.strerror}): "
            "nothing keeps a second run from this directory"
        )
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return file
