"""What the processes of all learners have noted, read as it is written."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
