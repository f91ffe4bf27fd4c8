"""The signals that ask a fit to stop."""

import signal
import threading
from types import FrameType
from typing import Any

import lightning.pytorch as pl


class Signals:
    """Handles signals in the place of Lightning, which would stop one learner alone.

    Args:
        trainer: Lightning's trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._requeue: int | None = None
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def ask_to_stop(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    @property
    def ask_to_requeue(self) -> bool:
        """Whether it is the one on which Lightning requeues a job of Slurm."""
        return self.ask_to_stop and self._received == self._requeue

    def listen(self, requeue: int | None) -> None:
        """Handle SIGTERM, SIGUSR1, which `distopt slurm` sends, and `requeue`.

        Python lets only the main thread do so. A fit on another one leaves the signals
        to whoever has started it, as Lightning's own strategies do.

        Args:
            requeue: the signal on which Lightning requeues the job; None: on none.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self._requeue = requeue
        for number in {signal.SIGTERM, signal.SIGUSR1, requeue or signal.SIGTERM}:
            self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._received = number
        launcher = self._trainer.strategy.launcher
        if launcher is not None and hasattr(launcher, "procs"):
            launcher.kill(number)

    def give_back(self) -> None:
        """Let the handlers of before handle the signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
