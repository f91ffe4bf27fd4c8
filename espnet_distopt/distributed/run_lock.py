"""A lock that lets one run at a time train in a folder.

Two runs would write the same files, and each would go on from those of the other.
"""

import fcntl
import logging
import os
import socket
import struct
import time
from pathlib import Path

from espnet_distopt.distributed.connections import hold
from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write

LOCK = "run.lock"
"""The name of the locked file in the folder."""

PATIENCE = 5.0
"""Seconds for which a run waits for the lock. Processes of the run before may still be
ending, as those of a job that was just cancelled."""

_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""The kernel's `struct flock` of an exclusive lock, on Linux with 64 bits."""


class RunLock:
    """The lock on the folder of a run, which one learner holds for all.

    The operating system frees the lock when the process ends, however it ends. A second
    run on the same machine is always refused. One on another machine is refused if the
    folder's file system shares locks, as NFS with its lock service does. On a file
    system without locks, a warning is logged and nothing is refused. The locked file
    stays there afterwards; without a lock on it, it means nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[int] = []
        hold(self)

    def take(self, patience: float = PATIENCE) -> None:
        """Lock the folder, which is made if it is missing.

        Raises:
            InputError: Another run still holds it after so many seconds, or it cannot
                be written.
        """
        path = self._folder / LOCK
        with explain_failed_write(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._files.append(file)
        end = time.monotonic() + patience
        while not _locks(file, path):
            if time.monotonic() > end:
                holder = os.pread(file, 1000, 0).decode("utf-8", "replace").strip()
                self.free()
                raise InputError(
                    f"{self._folder}: another run trains there "
                    f"({holder or 'just started'}): "
                    "wait for it, stop it, or take another folder"
                )
            time.sleep(0.1)
        os.ftruncate(file, 0)
        who = f"process {os.getpid()} on {socket.gethostname()}\n"
        os.pwrite(file, who.encode(), 0)

    def take_over(self) -> None:
        """Lock the folder, unless that is done, as the learner that held it has died.

        It logs a warning if that fails: a learner that was only stopped still has it.
        """
        if self._files:
            return
        try:
            self.take(patience=0)
        except InputError as error:
            logging.getLogger(__name__).warning(
                f"the lock is not this learner's: {error}"
            )

    def free(self) -> None:
        """Unlock the folder, if this learner holds it."""
        while self._files:
            os.close(self._files.pop())

    def descriptors(self) -> list[int]:
        """Return the open files: processes that are forked from now on give them up.

        A data loader's process would keep the lock for as long as it outlives a kill of
        the learner.
        """
        return self._files


def _locks(file: int, path: Path) -> bool:
    """Try to lock a file; return whether no other run has it."""
    try:
        # This lock belongs to the open file. One by `lockf` belongs to the process, and
        # would be lost as soon as any code here opened and closed the file once more.
        # `flock` is local to a machine on some file systems that share these.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        logging.getLogger(__name__).warning(
            f"{path}: no lock on this file system ({error.strerror}): "
            "nothing keeps a second run from this directory"
        )
    return True
