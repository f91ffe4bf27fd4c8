"""The module reads what the learners of a run have written down."""

import itertools
import json
from pathlib import Path
from typing import Any

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
