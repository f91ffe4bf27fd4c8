"""One wait for all that a supervisor reacts to: signals, ends of children, pipes."""

import os
import selectors
import signal
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import IO


class Events:
    """Waits for pipes and signals at once, and calls what belongs to a pipe.

    Args:
        signals: the signals to take note of; one that is ignored already stays so.
    """

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._selector = selectors.DefaultSelector()
        self._signals: list[signal.Signals] = []
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._selector.register(
            reader, selectors.EVENT_READ, partial(os.read, reader, 4096)
        )
        # A signal writes into this pipe, so that it ends the wait of the selector.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._noted = tuple(signals)
        for number in self._noted:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP.
                signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(signal.Signals(number))

    def watch(self, pipe: IO[bytes], action: Callable[[], object]) -> None:
        """Let `wait` call `action` whenever a pipe has something, or is closed."""
        self._selector.register(pipe, selectors.EVENT_READ, action)

    def forget(self, pipe: IO[bytes]) -> None:
        """Watch a pipe no longer."""
        self._selector.unregister(pipe)

    def wait(self, seconds: float) -> None:
        """Wait for the next event, at most for so long."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def take_signals(self) -> list[signal.Signals]:
        """Return the signals that have come since the last call, in their order."""
        taken, self._signals = self._signals, []
        return taken

    def ignore_signals(self) -> None:
        """Ignore the signals from now on, until the process has ended.

        Python gives a handled signal its default action back while it ends. Slurm may
        signal the launchers of all nodes when the first has ended, and the others must
        not die of that before they have ended by themselves.
        """
        for number in self._noted:
            signal.signal(number, signal.SIG_IGN)
