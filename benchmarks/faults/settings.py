"""How the tormented learners train; the file by which they are told."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

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
        save: whether each learner saves its state after each epoch, in a folder that
            is there for it.
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
    save: bool = False
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
