"""A stop within an epoch, which a signal asks for and exit code 75 reports.

A scheduler that is about to end a job first signals its processes. A person who wants a
training to stop does the same.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from espnet_distopt.errors import STOPPED

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""The signals that ask for a stop."""


class Stopped(SystemExit):
    """Ends the process after a stop that was asked for, which is no error."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


@contextmanager
def on_stop_signal(request: Callable[[str], None]) -> Generator[None, None, None]:
    """While the body runs, let each of `SIGNALS` call `request`, and do nothing else.

    If the body ends by `Stopped`, the signals are ignored from then on. A launcher
    signals the other learners when the first one has ended, and they must not die of
    that before they have ended by themselves.

    Args:
        request: It is called with the name of the signal.
    """

    def handle(number: int, _: FrameType | None) -> None:
        request(signal.Signals(number).name)

    after = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    except Stopped:
        after = dict.fromkeys(SIGNALS, signal.SIG_IGN)
        raise
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)
