"""What the learners of a loop save in a folder, and from which of it a run goes on.

    model.pt                        the model for use: the mean, of the last epoch's end
    epoch4.adpsgd.learner0of2.pt    what learner 0 needs to go on after four epochs
    epoch4+1.adpsgd.learner0of2.pt  and within the next one, where a run has stopped

The last two saves of each learner are kept, as others may not have come so far. A save
counts once all learners that lived have it. Two learners of three that have outlived
the third save `learner0of2`, so that the third one's earlier saves do not count.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.files.tensors import atomic_save, plain
from espnet_distopt.files.writing import explain_failed_write

State = dict[str, Any]

_NAME = re.compile(r"epoch(\d+)(?:\+(\d+))?\.(.+)\.learner(\d+)of(\d+)\.pt")


class Save(NamedTuple):
    """A learner's save, after `epochs` and `stops` within the next; greater is newer.

    `size` learners lived, of whom it is that of `rank`.
    """

    epochs: int
    stops: int
    algorithm: str
    size: int
    rank: int

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Return the save of a file's name; None for another file."""
        if not (found := _NAME.fullmatch(name)):
            return None
        epochs, stops, algorithm, rank, size = found.groups()
        return cls(int(epochs), int(stops or 0), algorithm, int(size), int(rank))

    def __str__(self) -> str:
        stops = f"+{self.stops}" if self.stops else ""
        learner = f"learner{self.rank}of{self.size}"
        return f"epoch{self.epochs}{stops}.{self.algorithm}.{learner}.pt"


class Saves:
    """The saves of one learner, in a folder that all see and learner 0 makes.

    Attributes:
        last: The save that is kept beside the next one; None if there is none.
    """

    def __init__(self, folder: Path, algorithm: str, rank: int, size: int) -> None:
        self.folder = folder
        self.last: Save | None = None
        self._algorithm, self._rank, self._size = algorithm, rank, size

    def _found(self) -> list[Save]:
        names = (Save.of(path.name) for path in self.folder.glob("epoch*.pt"))
        return sorted(save for save in names if save is not None)

    def choose(self) -> tuple[Save | None, bool]:
        """Return the newest save of a learner from which all can go on; None: of none.

        Also return whether all who lived have saved then. If they have, and `is_own`,
        each goes on from its own save; otherwise all go on from the model. Learner 0
        asks, before any learner saves. What a later part of a run has saved, from which
        nobody goes on, is removed.

        Raises:
            InputError: The folder cannot be made or written to.
        """
        with explain_failed_write(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for part in self.folder.glob(".*.pt.*.part"):  # A kill has left it.
                part.unlink(missing_ok=True)
            found = self._found()
            counts = Counter(save._replace(rank=0) for save in found)
            whole = [s for s in found if counts[s._replace(rank=0)] == s.size]
            usable = [s for s in whole if self.is_own(s) or not s.stops]
            # Where none is whole, the model counts, which was saved before them.
            ended = [s for s in found if not s.stops]
            chosen = max(usable or ended, default=None)
            for save in found:
                if save[:2] > chosen[:2] if chosen else self.is_own(save):
                    (self.folder / str(save)).unlink(missing_ok=True)
        return chosen, chosen in whole

    def is_own(self, save: Save) -> bool:
        """Return whether all learners of today have such a save of their own."""
        return (save.algorithm, save.size) == (self._algorithm, self._size)

    def read(self, name: str) -> State:
        """Return what a file has; raise InputError if it cannot be read."""
        path = self.folder / name
        try:
            state: State = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(
                f"{path}: learner {self._rank} cannot read it ({in_words(error)}): all "
                "learners need one folder; remove a broken file to go on from the save "
                "before"
            ) from None
        return state

    def write_model(self, state: Mapping[str, Any]) -> None:
        """Write the model for use; raise InputError if it cannot be written."""
        with explain_failed_write(self.folder / "model.pt"):
            atomic_save(dict(state), self.folder / "model.pt")

    def write(self, epochs: int, stops: int, size: int, state: State) -> None:
        """Write this learner's `Save`, and remove all but that and the last one.

        Raises:
            InputError: It cannot be written; the last one is still there.
        """
        save = Save(epochs, stops, self._algorithm, size, self._rank)
        with explain_failed_write(self.folder / str(save)):
            atomic_save(plain(state), self.folder / str(save))
            for old in self._found():
                mine = old.rank % self._size == self._rank
                if mine and old not in (save, self.last):
                    (self.folder / str(old)).unlink(missing_ok=True)
        self.last = save


class Parts(dict[str, Any]):
    """What a loop keeps beside its session: objects with a state, by their names."""

    def state_dict(self) -> State:
        """Return the states, by name."""
        return {name: plain(part.state_dict()) for name, part in self.items()}

    def load_state_dict(self, states: State) -> None:
        """Give each part its state; raise InputError if there is none of its name."""
        for name, part in self.items():
            if name not in states:
                raise InputError(
                    f"the save has no '{name}', only {', '.join(states) or 'nothing'} "
                    "beside the session: give resume() what the earlier run has given"
                )
            part.load_state_dict(states[name])
