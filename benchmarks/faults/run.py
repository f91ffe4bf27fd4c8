"""A run of the tormented training under the launcher, as seen from outside.

`Settings` says how the learners train, and is the file by which they are told. Each
process of a learner writes what it does to a file, which `Records` reads as it grows.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from report import machine

from espnet_distopt.files.writing import write_json

FOREVER = 10**6
"""More epochs than a training has that goes on until it is told to end."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the learners train.

    Attributes:
        learners: the number of learners.
        seed: the seed of the model and the batches.
        step_seconds: for how long a step sleeps, in place of an accelerator.
        items: the batches of an epoch, of all learners together.
        epochs: the number of epochs, if nobody tells the learners to end before.
        cooling: the number of last epochs, in which the learning rate falls to 0.
        heartbeat: the seconds of silence after which a learner is given up.
        namespaces: the network namespace of each learner; none means this machine's.
        interface: the network interface of the learners.
    """

    learners: int
    seed: int
    step_seconds: float
    items: int
    epochs: int = FOREVER
    cooling: int = 4
    heartbeat: float = 10.0
    namespaces: tuple[str, ...] = ()
    interface: str = "lo"

    def write(self, directory: Path) -> None:
        """Write the settings for the learners of a run."""
        write_json(directory / "settings.json", asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Settings":
        """Return the settings of a run."""
        found = json.loads((directory / "settings.json").read_text())
        return cls(**{**found, "namespaces": tuple(found["namespaces"])})


Event = tuple[float, tuple[Any, ...]]
"""When an event was, in seconds of the machine's monotonic clock, and its values."""


@dataclass
class Process:
    """The notes of one process of a learner.

    Attributes:
        rank: the learner's rank.
        incarnation: how often the learner was started before.
        events: the events of each name, in their order.
        last: when it noted something last.
    """

    rank: int
    incarnation: int
    events: dict[str, list[Event]] = field(default_factory=dict)
    last: float = 0.0
    _read: int = 0

    def of(self, name: str) -> list[Event]:
        """Return the events of a name."""
        return self.events.get(name, [])

    @property
    def pid(self) -> int:
        """The number of the process."""
        return int(self.of("process")[0][1][0])

    @property
    def started(self) -> float:
        """When it was started."""
        return self.of("process")[0][0]

    @property
    def first_step(self) -> float | None:
        """When its first step was made; None if it has made none."""
        steps = self.of("step")
        return steps[0][0] if steps else None

    def read(self, path: Path) -> None:
        """Read the whole lines that have come since the last time."""
        with path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            name, when, *values = json.loads(line)
            self.events.setdefault(name, []).append((when, tuple(values)))
            self.last = when


class Records:
    """The notes of all processes of a run.

    Args:
        directory: the folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[tuple[int, int], Process] = {}

    def read(self) -> None:
        """Read what is new."""
        for path in self._directory.glob("*.*.jsonl"):
            rank, incarnation, _ = path.name.split(".")
            key = int(rank), int(incarnation)
            process = self._processes.setdefault(key, Process(*key))
            process.read(path)

    def __iter__(self) -> Iterator[Process]:
        """Go through the processes by rank and incarnation."""
        noted = (key for key, each in self._processes.items() if each.events)
        return iter([self._processes[key] for key in sorted(noted)])

    def latest(self, rank: int) -> Process | None:
        """Return the present process of a learner, or None if it has noted nothing."""
        own = [each for each in self if each.rank == rank]
        return own[-1] if own else None


LEARNER = str(Path(__file__).with_name("learner.py"))
ROOT = Path(__file__).resolve().parents[2]

RESTARTS = 9999
"""How often a learner is started again, at most: more often than it is killed."""

PATIENCE = 120.0
"""Seconds without a step after which a learner counts as hanging."""

START = 600.0
"""The same before its first step: it imports on a busy machine, and may have to wait
for the next epoch."""

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
        directory.mkdir(parents=True, exist_ok=True)
        settings.write(directory)
        write_json(directory / "machine.json", machine())
        self.records = Records(directory)
        options = ["--nproc", str(settings.learners), "--restarts", str(RESTARTS)]
        options += ["--label"]
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

    def until(self, what: Callable[[], object], seconds: float = START) -> bool:
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
            if process is None or process.of("ended"):
                continue
            patience = START if process.first_step is None else PATIENCE
            if now - process.last > patience:
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
