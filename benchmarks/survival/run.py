"""The module runs learners under the launcher, and kills or stops one of them.

`Settings` says what the learners do, and `Events` has what they have written down.
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the learners of a run do, and what happens to one of them.

    Attributes:
        algorithm: the name of the algorithm.
        options: its options.
        parameters: the number of parameters, in float32.
        seconds: the seconds for which the model sleeps in a step.
        steps: the steps of each learner in an epoch.
        epochs: the number of epochs.
        heartbeat: the session's `heartbeat_seconds`.
        learners: the number of learners, N.
        victim: the rank of the learner that dies or is stopped.
        stopped: whether it is stopped rather than killed; it goes on after three
            silences.
        after: the steps that each learner has made before that, at least.
        replaced: whether the launcher starts the dead learner again.
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
    replaced: bool = False

    def write(self, directory: Path) -> None:
        """Write the settings into the folder of a run."""
        write_json(directory / FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Settings":
        """Read them from there."""
        return cls(**json.loads((directory / FILE).read_text(encoding="utf-8")))


Event = dict[str, Any]


class Events:
    """The events of the processes of a run.

    Args:
        found: the events of each process, in their order, by its name RANK.INCARNATION.
    """

    def __init__(self, found: dict[str, list[Event]]) -> None:
        self.found = found

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


def read_events(directory: Path) -> Events:
    """Return what the processes have written into a folder so far.

    The last line of a file may be only half there; it counts once it is whole.
    """
    found = {}
    for path in directory.glob("*.jsonl"):
        *lines, _ = path.read_text(encoding="utf-8").split("\n")
        found[path.stem] = [json.loads(line) for line in lines]
    return Events(found)


LEARNER = Path(__file__).parent / "learner.py"
PACKAGE = Path(__file__).parents[2]
START = 180.0
"""Seconds in which all learners must have begun."""


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
        RuntimeError: the learners have not begun, or have not ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        settings.write(directory)
        with (directory / "log").open("wb") as log:
            launcher = _start(settings, directory, log.fileno())
            try:
                return _strike(settings, directory, launcher, delays.random())
            finally:
                # SIGTERM lets it end its learners; its watchdog does if it is killed.
                launcher.kill()
                launcher.wait()


def _start(settings: Settings, directory: Path, log: int) -> "subprocess.Popen[bytes]":
    options = ["--nproc", str(settings.learners), "--on-death", "continue"]
    options += ["--restarts", str(int(settings.replaced))]
    program = [str(LEARNER), str(directory)]
    path = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "espnet_distopt.bin.launch", *options, *program],
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": path, "RES_OPTIONS": "timeout:1 attempts:1"},
    )


def _strike(
    settings: Settings,
    directory: Path,
    launcher: "subprocess.Popen[bytes]",
    delay: float,
) -> Outcome:
    def until(what: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                said = (directory / "log").read_text(errors="replace")
                raise RuntimeError(f"{settings} has not come so far: {said[-2000:]}")
            time.sleep(0.02)

    def all_trained() -> bool:
        events = read_events(directory)
        counts = [len(events.of(f"{r}.0", "step")) for r in range(settings.learners)]
        return min(counts) >= settings.after or launcher.poll() is not None

    until(all_trained, START + settings.after * settings.seconds * 10)
    time.sleep(delay)
    [begun] = read_events(directory).of(f"{settings.victim}.0", "session")
    number = signal.SIGSTOP if settings.stopped else signal.SIGKILL
    struck = time.monotonic()
    os.kill(begun["pid"], number)
    woken = None
    if settings.stopped:
        time.sleep(3 * settings.heartbeat)
        woken = time.monotonic()
        os.kill(begun["pid"], signal.SIGCONT)
    until(lambda: launcher.poll() is not None, 120 + 10 * settings.steps)
    said = (directory / "log").read_text(errors="replace")
    events = read_events(directory)
    return Outcome(settings, struck, woken, launcher.returncode, events, said)
