"""One epoch that ESPnet trains by itself, alone or by DDP.

`DistoptEpoch` is one that an algorithm trains. Both say what comes before, between and
after the steps of ESPnet's loop.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from espnet2.train.reporter import SubReporter

from espnet_distopt.espnet.training.learner_state import Position
from espnet_distopt.espnet.training.loading import Batch, length, without_first
from espnet_distopt.espnet.training.run import Run


class Epoch:
    """An epoch that ESPnet trains by itself.

    Args:
        run: The run that it belongs to.
        reporter: ESPnet's reporter of this epoch's training.
        schedulers: ESPnet's learning-rate schedulers, one for each optimizer.

    Attributes:
        run: The same.
        reporter: The same.
        schedulers: What the training loop is to step.
        start: Where this learner begins.
    """

    def __init__(
        self, run: Run, reporter: SubReporter, schedulers: Sequence[Any]
    ) -> None:
        self.run = run
        self.reporter = reporter
        self.schedulers = schedulers
        self.start = Position()

    def begin(self, iterator: Iterable[Batch]) -> None:
        """Note where the epoch begins.

        Args:
            iterator: The batches of the epoch, as ESPnet's iterator factory gives them.
        """
        number, start = self.reporter.get_epoch(), self.start
        self.run.progress.begin_epoch(number, length(iterator), start.step, start.spent)

    def batches(self, iterator: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches that this learner still has to train on."""
        return without_first(iterator, self.start.batches)

    def begin_steps(self) -> None:
        """Do what comes before the first batch."""

    def begin_batch(self, weight: int) -> None:
        """Do what comes before a batch whose loss has this weight."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return the context of a batch after which the optimizer does not step."""
        return nullcontext()

    def end_batch(self, samples: int, number: int) -> None:
        """Count a batch of so many utterances, the epoch's `number`-th."""
        self.run.progress.samples += samples
        self.run.progress.batches = number

    def step(self, number: int) -> dict[str, float]:
        """Do what comes after an attempted step; return the algorithm's figures of it.

        Args:
            number: The number of batches that this learner has trained on so far.
        """
        self.run.progress.step(number, self.reporter, {})
        return {}

    def stop_if_asked(self, batches: int) -> None:
        """End the process if a stop has been requested.

        Args:
            batches: The number of batches that this learner has trained on so far.
        """
        if self.run.stop_signal is not None:
            self.run.stop(saved=False)

    def form_consensus(self) -> None:
        """Put the consensus model into the parameters; here they hold it already."""

    def end(self, all_steps_are_invalid: bool) -> bool:
        """Do what comes after the last step; return what ESPnet's loop has to know.

        Args:
            all_steps_are_invalid: Whether no step had a finite gradient.
        """
        self.run.progress.end_training(self.reporter)
        return all_steps_are_invalid
