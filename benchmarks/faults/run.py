"""A run of the tormented training under the launcher, as seen from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.records import Process, Records
from faults.settings import Settings

LEARNER = str(Path(__file__).with_name("learner.py"))
ROOT = Path(__file__).resolve().parents[2]

RESTARTS = 9999
"""How often a learner is started again, at most: more often than it is killed."""

PATIENCE = 120.0
"""Seconds without a step, or for a start, after which a learner counts as hanging."""

LOOK = 0.05
"""Seconds between two looks at a condition."""


class HangError(RuntimeError):
    """Learners hang; the message says which ones, and where their stacks are."""


class Run:
    """A training under the launcher.

    Args:
        directory: a new folder for what the run writes.
        settings: how the learners train.
        master: `host:port` of the store; None lets the launcher choose.

    Attributes:
        records: what the learners have noted.
        launcher: the process of the launcher.
    """

    def __init__(
        self, directory: Path, settings: Settings, master: str | None = None
    ) -> None:
        self.directory, self.settings = directory, settings
        directory.mkdir(parents=True)
        settings.write(directory)
        self.records = Records(directory)
        options = ["--nproc", str(settings.learners), "--restarts", str(RESTARTS)]
        options += ["--on-death", "continue", "--label"]
        options += ["--master", master] if master else []
        module = [sys.executable, "-m", "espnet_distopt.bin.launch", *options]
        # The store looks up the name of each learner that connects.
        known = {"PYTHONPATH": str(ROOT), "RES_OPTIONS": "timeout:1 attempts:1"}
        with (directory / "launch.log").open("wb") as log:
            self.launcher = subprocess.Popen(
                [*module, LEARNER, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **known},
                start_new_session=True,
            )

    def note(self, event: str, **values: Any) -> float:
        """Write down what was done to the run, and return when."""
        now = time.monotonic()
        with (self.directory / "faults.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "time": now, **values}) + "\n")
        return now

    # Looking

    def latest(self, rank: int) -> Process | None:
        """Return the present process of a learner, after a look at what is new."""
        self.records.read()
        return self.records.latest(rank)

    def lives(self, process: Process) -> bool:
        """Return whether a process is there and has not ended."""
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def all_step(self) -> bool:
        """Return whether the present process of each learner lives and has stepped."""
        self.records.read()
        for rank in range(self.settings.learners):
            process = self.records.latest(rank)
            if process is None or process.first_step is None:
                return False
            if not self.lives(process):
                return False
        return True

    @property
    def ended(self) -> bool:
        """Whether the launcher has ended."""
        return self.launcher.poll() is not None

    @property
    def log(self) -> str:
        """What the launcher and the learners have written."""
        return (self.directory / "launch.log").read_text(errors="replace")

    # Waiting

    def until(self, what: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Wait until something holds; return False if the run has ended before.

        Raises:
            HangError: it does not hold after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while not what():
            if self.ended:
                return bool(what())
            if time.monotonic() > deadline:
                raise HangError(self._dump(range(self.settings.learners)))
            time.sleep(LOOK)
        return True

    def calm(self, seconds: float) -> None:
        """Let the learners train for a while, and see that none hangs.

        Raises:
            HangError: a learner makes no step, or does not start.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.ended:
            time.sleep(min(1.0, left))
            self.refuse_hangs()

    def refuse_hangs(self) -> None:
        """Raise HangError if a process of a learner has noted nothing for long."""
        self.records.read()
        now, hanging = time.monotonic(), []
        for rank in range(self.settings.learners):
            process = self.records.latest(rank)
            if process is None or process.of("ended") or now - process.last < PATIENCE:
                continue
            hanging.append(rank)
        if hanging:
            raise HangError(self._dump(hanging))

    def _dump(self, ranks: Any) -> str:
        """Let learners write the stacks of their threads; return where they are."""
        found = []
        for rank in ranks:
            process = self.latest(rank)
            if process is not None and self.lives(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR2)
                found.append(f"{rank}.{process.incarnation}")
        time.sleep(1.0)
        return f"hanging: {', '.join(found) or 'nobody'}; see {self.directory}/*.stacks"

    # Ending

    def end(self, seconds: float = 600.0) -> int:
        """Tell the learners to end after their last epochs; return the exit status.

        Raises:
            HangError: they do not end.
        """
        (self.directory / "end").touch()
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        """Wait for the end of the launcher, and return its exit status.

        Raises:
            HangError: it does not end.
        """
        deadline = time.monotonic() + seconds
        while not self.ended:
            self.refuse_hangs()
            if time.monotonic() > deadline:
                raise HangError(self._dump(range(self.settings.learners)))
            time.sleep(LOOK)
        self.records.read()
        assert self.launcher.returncode is not None
        return self.launcher.returncode

    def kill(self) -> None:
        """End the run at once: the watchdog kills what the launcher has started."""
        if not self.ended:
            self.launcher.kill()
        self.launcher.wait()
