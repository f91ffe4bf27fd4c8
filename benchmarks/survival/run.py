"""The module runs learners under the launcher, and kills or stops one of them."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from survival.events import Events, read_events
from survival.settings import Settings

LEARNER = Path(__file__).parent / "learner.py"
PACKAGE = Path(__file__).parents[2]
START = 180.0
"""Seconds in which all learners must have begun."""


@dataclass(frozen=True)
class Outcome:
    """What has happened in a run.

    Attributes:
        settings: of the run.
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
        settings: of the run.
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
