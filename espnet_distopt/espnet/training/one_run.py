"""One run at a time in an experiment's directory.

Two would write the same checkpoints, and each would read the other's.
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


@contextmanager
def only_run(output_dir: Path) -> Iterator[None]:
    """Be the only run in a directory until the body ends, however this process ends.

    Learner 0 holds the lock for all learners; each of them calls this, and none enters
    the body before learner 0 holds it. The lock is certain on one machine. From another
    one it is seen if the directory's file system passes locks on (NFS with its lock
    service does); where there are no locks, a warning is logged and nothing is held.

    Args:
        output_dir: made if it is missing. The lock's file stays: it is the lock on it
            that counts.

    Raises:
        InputError: on learner 0: another run holds the directory. The message names
            its process and host.
        SystemExit: on the other learners, then: the message is said once.
    """
    group = dist.is_initialized()
    rank = dist.get_rank() if group else 0
    lock: int | None = None
    refusal: list[InputError | None] = [None]
    if rank == 0:
        try:
            lock = _acquire(output_dir)
        except InputError as error:
            refusal = [error]
    try:
        if group:
            dist.broadcast_object_list(refusal, src=0)
        if refusal[0] is not None:
            raise refusal[0] if rank == 0 else SystemExit(2)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def refuse_if_taken(output_dir: Path) -> None:
    """Raise InputError if a run holds the directory; holds nothing itself.

    For every learner, before ESPnet writes the run's configuration there.
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
        return  # no locks here: `only_run` says so
    finally:
        os.close(file)


def _taken(output_dir: Path, file: int) -> InputError:
    holder = os.pread(file, 1000, 0).decode("utf-8", "replace").strip()
    return InputError(
        f"{output_dir}: another run trains there ({holder or 'just started'}): "
        "wait for it, stop it, or take another --output_dir"
    )


def _acquire(output_dir: Path) -> int:
    """Lock the directory; returns the file whose closing unlocks it."""
    output_dir.mkdir(parents=True, exist_ok=True)
    file = os.open(output_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # A record lock, for it is this process's alone: one by flock would be inherited
        # by the data loader's processes, which outlive a kill by seconds.
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
