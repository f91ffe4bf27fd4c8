"""The settings of one run of `benchmarks/healing.py`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
        (directory / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Settings":
        """Read them from there."""
        return cls(**json.loads((directory / FILE).read_text(encoding="utf-8")))
