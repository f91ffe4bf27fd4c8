"""Runs of the launcher with workers that do what files tell them to."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORKER = str(HERE / "worker.py")


STARTED: list[subprocess.Popen[str]] = []
"""The launchers of the current test."""


class Launched:
    """A launcher that was started in a folder, and its workers.

    They are those of `command`; or else of `program`, which is told of the folder and
    `what` to do. Their output is appended to `log`, or goes to pipes or `output`.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        what: str = "",
        program: str = WORKER,
        command: Sequence[str] = (),
        launcher: Sequence[str] = ("-m", "espnet_distopt.bin.launch"),
        output: Any = subprocess.PIPE,
        log: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self._log = directory, log
        words = command or [program, str(directory), *what.split()]
        output = log.open("ab") if log else output
        self.process = subprocess.Popen(
            [sys.executable, *launcher, *options, *words],
            cwd=directory,
            stdout=output,
            stderr=output,
            text=True,
            env=environment() | (variables or {}),
            start_new_session=True,
        )
        STARTED.append(self.process)

    def until(self, what: Callable[[], object]) -> None:
        """Wait until something holds, while the launcher runs."""
        deadline = time.monotonic() + (300 if self._log else 120)
        while not what():
            if self.process.poll() is not None:
                raise AssertionError(self.process.communicate(), self.logged())
            assert time.monotonic() < deadline, f"waited in vain {self.logged()}"
            time.sleep(0.02)

    def logged(self) -> str:
        """Return the end of the log, if there is one."""
        return self._log.read_text()[-3000:] if self._log else ""

    def began(self, *names: str) -> None:
        """Wait until processes have begun, each named RANK.INCARNATION."""
        self.until(lambda: all((self.directory / name).exists() for name in names))

    def pids(self, rank: int) -> tuple[int, int]:
        """Return the pid of a learner, and that of its own child."""
        own, child = (self.directory / f"{rank}.pids").read_text().split()
        return int(own), int(child)

    def all_pids(self, size: int) -> list[int]:
        """Return the pids of all learners, and of their children."""
        return [pid for rank in range(size) for pid in self.pids(rank)]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Kill a learner by a signal."""
        os.kill(self.pids(rank)[0], number)

    def reaped(self, rank: int) -> None:
        """Wait until the launcher has taken a dead learner's status."""
        self.until(lambda: not Path(f"/proc/{self.pids(rank)[0]}").exists())

    def tell_end(self, status: int = 0, rank: int | None = None) -> None:
        """Let one learner end, or all of them."""
        name = "end" if rank is None else f"end.{rank}"
        new = self.directory / "new.end"
        new.write_text(str(status))
        new.rename(self.directory / name)

    def ended(self, seconds: float = 120) -> tuple[int, list[str], list[str]]:
        """Return exit status, and the lines of stdout and stderr.

        The launcher's first line, which says what starts, is left out.
        """
        out, err = self.process.communicate(timeout=seconds)
        lines = err.splitlines()
        if lines and re.match(r"launch: learners? \d+.* of \d+, on ", lines[0]):
            del lines[0]
        return self.process.returncode, out.splitlines(), lines

    def helpers(self) -> list[int]:
        """Return the pids of the launcher's children that run store_process."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
                if parent == self.process.pid and b"launch.store_process" in b"".join(
                    command
                ):
                    found.append(int(folder.name))
        return found


def begun(directory: Path, size: int, *options: str, **more: Any) -> Launched:
    """Start learners on one node; return when all have begun."""
    run = Launched(directory, "--nproc", str(size), *options, **more)
    run.began(*(f"{rank}.0" for rank in range(size)))
    return run


def environment() -> dict[str, str]:
    """Return the variables for a launcher, outside of any Slurm step."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    kept.pop("OMP_NUM_THREADS", None)
    return {**kept, "PYTHONPATH": str(ROOT), "RES_OPTIONS": "timeout:1 attempts:1"}


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def all_gone(*pids: int) -> bool:
    """Wait until processes have ended, for some seconds."""
    deadline = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
