"""A stop within an epoch, which a signal asks for and exit code 75 reports.

A scheduler that is about to end a job first signals its processes. A person who wants a
training to stop does the same, or presses Ctrl-C.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from espnet_distopt.errors import STOPPED

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""The signals that ask for a stop."""


class Stopped(SystemExit):
    """Ends the process after a stop that was asked for, which is no error."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


@contextmanager
def on_stop_signal(request: Callable[[str], None]) -> Generator[None, None, None]:
    """While the body runs, let each of `SIGNALS` call `request`, and do nothing else.

    A second Ctrl-C raises KeyboardInterrupt, as without this. A process that ignores
    Ctrl-C, because a shell has started it in the background, goes on ignoring it.

    If the body ends by `Stopped`, the signals are ignored from then on. A launcher
    signals the other learners when the first one has ended, and they must not die of
    that before they have ended by themselves.

    Args:
        request: It is called with the name of the signal.
    """

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        request(signal.Signals(number).name)

    heard = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    after = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    except Stopped:
        after = dict.fromkeys(SIGNALS, signal.SIG_IGN)
        raise
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)
