"""Child processes that cannot outlive the launcher.

Each child leads a process group of its own, so that Ctrl-C in a terminal reaches only
the launcher, and so that all that a child has started can be killed with it. The
watchdog knows each group before the child's program begins: until then the child, a
shell, waits for a line on its stdin, and it ends if the launcher dies before that.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from espnet_distopt.errors import InputError
from espnet_distopt.launch import watchdog

_SHELL = "/bin/sh"
# A signal that is ignored stays so in the program that the shell becomes.
_DEAF = "trap '' HUP INT TERM USR1 USR2; "
_GATE = "read -r line && "


def _open(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own.

    Raises:
        InputError: the machine starts no more processes.
    """
    try:
        return subprocess.Popen(command, process_group=0, **options)
    except OSError as error:
        raise InputError(
            f"no process can be started: {error.strerror}; the limit of processes "
            "(ulimit -u) or the memory of this machine may be used up"
        ) from None


class Children:
    """Starts child processes, and keeps the watchdog informed of them.

    Raises:
        InputError: the machine starts no more processes; `start` and `start_helper`
            raise it, too.
    """

    def __init__(self) -> None:
        program = str(Path(watchdog.__file__))
        self._watchdog = _open(
            [_SHELL, "-c", _DEAF + 'exec "$@"', _SHELL, sys.executable, "-IS", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        piped: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a program without stdin, which has no variables but `environment`.

        Its stdout and stderr are pipes to this process, or those of this process.
        """
        output = subprocess.PIPE if piped else None
        child = _open(
            [_SHELL, "-c", _GATE + 'exec "$@" </dev/null', _SHELL, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        )
        self._open_gate(child)
        assert child.stdin is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        return child

    def start_helper(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program of the launcher, which ends when its stdin is closed.

        It ignores all signals that ask for an end, and its stdout is a pipe.
        """
        child = _open(
            [_SHELL, "-c", _DEAF + _GATE + 'exec "$@"', _SHELL, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=pass_fds,
        )
        self._open_gate(child)
        return child

    def _open_gate(self, child: subprocess.Popen[bytes]) -> None:
        self._tell(f"+{child.pid}\n")
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # The child was killed already.
            child.stdin.write(b"\n")
            child.stdin.flush()

    def end_of(self, child: subprocess.Popen[bytes]) -> int | None:
        """Return the exit status of a child that has ended, or None if it still runs.

        What the child has left of its process group is killed. The group's number
        cannot belong to another group before the child's status has been taken.
        """
        state = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if child.returncode is None and os.waitid(os.P_PID, child.pid, state) is None:
            return None
        if child.returncode is None:
            kill_group(child)
            self._tell(f"-{child.pid}\n")
            child.wait()
        assert child.returncode is not None
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def wait_for(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait until a child has ended, and kill it after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.end_of(child) is None:
            if time.monotonic() > deadline:
                kill_group(child)
            time.sleep(0.02)

    def close(self) -> None:
        """End the watchdog, which kills every group that is left."""
        assert self._watchdog.stdin is not None
        with suppress(BrokenPipeError):
            self._watchdog.stdin.close()
        self._watchdog.wait()

    def _tell(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        with suppress(BrokenPipeError):  # Somebody has killed the watchdog.
            self._watchdog.stdin.write(line.encode())
            self._watchdog.stdin.flush()


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that was not waited for yet, and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def take(stream: IO[bytes]) -> bytes | None:
    """Return what a pipe has now; None if it is closed, b"" if it has nothing."""
    try:
        return os.read(stream.fileno(), 65536) or None
    except BlockingIOError:
        return b""
