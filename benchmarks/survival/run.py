"""Learners under the launcher, as seen from outside: started, lost, and read.

`Settings` says what the learners do, and `Events` has what they have written down.
`run` strikes one learner in mid-epoch; a `Training` can be struck again and again.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet_distopt.files.writing import write_json

FILE = "settings.json"
LEARNER = Path(__file__).parent / "learner.py"
PACKAGE = Path(__file__).parents[2]
START = 180.0
"""Seconds in which all learners must have begun."""

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the learners of a run do, and what happens to one of them.

    Attributes:
        algorithm: the name of the algorithm.
        options: its options.
        parameters: the number of parameters, in float32.
        seconds: the seconds for which the model sleeps in a step.
        steps: the steps of each learner in an epoch.
        epochs: the number of epochs, unless the learners are told to end before.
        heartbeat: the session's `heartbeat_seconds`.
        learners: the number of learners, N.
        victim: the rank of the learner that dies or is stopped.
        stopped: whether it is stopped rather than killed; it goes on after three
            silences.
        after: the steps that each learner has made before that, at least.
        restarts: how often the launcher starts a dead learner again.
    """

    algorithm: str = "adpsgd"
    options: dict[str, Any] = field(default_factory=dict)
    parameters: int = 100_000
    seconds: float = 0.04
    steps: int = 150
    epochs: int = 2
    heartbeat: float = 30.0
    learners: int = 4
    victim: int = 0
    stopped: bool = False
    after: int = 30
    restarts: int = 0

    def write(self, directory: Path) -> None:
        """Write the settings into the folder of a run."""
        write_json(directory / FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Settings":
        """Read them from there."""
        return cls(**json.loads((directory / FILE).read_text(encoding="utf-8")))


class Events:
    """The events of the processes of a run.

    Args:
        found: the events of each process, in their order, by its name RANK.INCARNATION.
    """

    def __init__(self, found: dict[str, list[Event]] | None = None) -> None:
        self.found = found or {}
        self._read: dict[str, int] = {}

    def read(self, directory: Path) -> "Events":
        """Read what the processes have written into a folder since the last time.

        The last line of a file may be only half there; it counts once it is whole.
        """
        for path in directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path.stem, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path.stem] = self._read.get(path.stem, 0) + len(whole)
            lines = map(json.loads, whole.splitlines())
            self.found.setdefault(path.stem, []).extend(lines)
        return self

    def of(self, name: str, event: str) -> list[Event]:
        """Return the events of one kind of one process."""
        return [each for each in self.found.get(name, []) if each["event"] == event]

    def steps(self, name: str) -> list[tuple[float, float]]:
        """Return when each step of a process began and ended.

        A step begins when the one before it has ended: with what the loop does between
        the two. The first step of an epoch is left out.
        """
        found = self.of(name, "step")
        return [
            (before["at"], after["at"])
            for before, after in itertools.pairwise(found)
            if before["epoch"] == after["epoch"]
        ]

    def latest(self, rank: int) -> str | None:
        """Return the name of a learner's present process; None if there is none yet."""
        own = [n for n, each in self.found.items() if each and rank_of(n) == rank]
        return max(own, key=lambda name: int(name.split(".")[1]), default=None)


def rank_of(name: str) -> int:
    """Return the rank of a process, whose name is RANK.INCARNATION."""
    return int(name.split(".")[0])


class HangError(RuntimeError):
    """The learners have not come so far in time."""


class Training:
    """Learners under the launcher.

    Args:
        directory: the folder of the run, which is there.
        settings: the settings of the run.
    """

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory, self.settings = directory, settings
        self.events = Events()
        settings.write(directory)
        options = ["--nproc", str(settings.learners), "--on-death", "continue"]
        options += ["--restarts", str(settings.restarts)]
        program = [str(LEARNER), str(directory)]
        path = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
        # The store looks up the name of each learner that connects.
        known = {"PYTHONPATH": path, "RES_OPTIONS": "timeout:1 attempts:1"}
        with (directory / "log").open("wb") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "espnet_distopt.bin.launch", *options, *program],
                stdout=log,
                stderr=log,
                env={**os.environ, **known},
            )

    @property
    def ended(self) -> bool:
        """Whether the launcher has ended."""
        return self.launcher.poll() is not None

    @property
    def said(self) -> str:
        """What the launcher and the learners have written."""
        return (self.directory / "log").read_text(errors="replace")

    def read(self) -> Events:
        """Return the events, after a look at what is new."""
        return self.events.read(self.directory)

    def pid(self, name: str) -> int:
        """Return the number of a process."""
        [event] = self.events.of(name, "process")
        return int(event["pid"])

    def until(self, what: Callable[[], object], seconds: float) -> None:
        """Wait until something holds.

        Raises:
            HangError: it does not hold after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise HangError(
                    f"{self.settings} has not come so far: {self.said[-2000:]}"
                )
            time.sleep(0.02)

    def end(self) -> None:
        """Kill the launcher, whose watchdog ends the learners."""
        self.launcher.kill()
        self.launcher.wait()


@dataclass(frozen=True)
class Outcome:
    """What has happened in a run.

    Attributes:
        settings: the settings of the run.
        struck: when the victim was killed or stopped, by the monotonic clock.
        woken: when it went on, if it was only stopped.
        status: the exit status of the launcher.
        events: those of each process, by its name RANK.INCARNATION.
        said: stdout and stderr of the launcher and the learners.
    """

    settings: Settings
    struck: float
    woken: float | None
    status: int
    events: Events
    said: str


def run(settings: Settings, delays: random.Random) -> Outcome:
    """Start the learners, strike one of them in mid-epoch, and wait for the end.

    Args:
        settings: the settings of the run.
        delays: draws the moment of the blow, within a second.

    Raises:
        HangError: the learners have not begun, or have not ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), settings)
        try:
            return _strike(training, delays.random())
        finally:
            training.end()


def _strike(training: Training, delay: float) -> Outcome:
    settings = training.settings

    def all_trained() -> bool:
        events = training.read()
        counts = [len(events.of(f"{r}.0", "step")) for r in range(settings.learners)]
        return min(counts) >= settings.after or training.ended

    training.until(all_trained, START + settings.after * settings.seconds * 10)
    time.sleep(delay)
    victim = training.pid(f"{settings.victim}.0")
    struck = time.monotonic()
    os.kill(victim, signal.SIGSTOP if settings.stopped else signal.SIGKILL)
    woken = None
    if settings.stopped:
        time.sleep(3 * settings.heartbeat)
        woken = time.monotonic()
        os.kill(victim, signal.SIGCONT)
    training.until(lambda: training.ended, 120 + 10 * settings.steps)
    status = training.launcher.returncode
    return Outcome(settings, struck, woken, status, training.read(), training.said)
