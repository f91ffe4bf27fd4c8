"""A callback that gives each learner a speed, and writes down what it has done."""

import json
import time
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl


class Paced(pl.Callback):
    """Makes the forward and backward pass of a learner take a given time.

    What it writes is one JSON list for each event: the event ("begin", "batch", "step",
    "end" for the fit; "met" once in each epoch), the time, and the utterances of a
    batch. Learners have met where validation begins or, without one, the epoch ends.

    Args:
        path: a file to which the learner's number is added.
        seconds: the seconds of each learner's passes; they take as long as they need,
            if that is more.
    """

    def __init__(self, path: str, seconds: Sequence[float]) -> None:
        self._path, self._seconds = path, seconds
        self._began = 0.0
        self._met = False
        self._lines: list[str] = []

    def _note(self, event: str, *what: Any) -> None:
        self._lines.append(json.dumps([event, time.monotonic(), *what]))

    def on_train_start(self, *_: Any) -> None:
        """Note the beginning."""
        self._note("begin")

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begin an epoch."""
        self._met = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: Any, batch: Any, *_: Any
    ) -> None:
        """Note the utterances of the batch."""
        self._began = time.monotonic()
        self._note("batch", batch[0])

    def on_after_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        """Sleep for what is left of the learner's time."""
        due = self._began + self._seconds[trainer.global_rank]
        time.sleep(max(0.0, due - time.monotonic()))

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the end of a step."""
        self._note("step")

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note that the learners have met."""
        if not (self._met or trainer.sanity_checking):
            self._note("met")
            self._met = True

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note it here, where there was no validation."""
        self.on_validation_start(trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Write everything."""
        self._note("end")
        with open(f"{self._path}.{trainer.global_rank}", "w", encoding="utf-8") as file:
            print(*self._lines, sep="\n", file=file)
