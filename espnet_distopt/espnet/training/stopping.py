"""Stopping within an epoch: a signal asks for it, exit code 75 says that it was done.

A scheduler that is about to end a job signals its processes first; so does a person.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

STOPPED = 75
"""Exit code (EX_TEMPFAIL of sysexits.h): state saved, start again to go on."""

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class Stopped(SystemExit):
    """Ends the process after a stop on request; not an error."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


@contextmanager
def on_stop_signal(request: Callable[[str], None]) -> Generator[None, None, None]:
    """Inside, a signal of SIGNALS calls `request` with its name, and does no more.

    After `Stopped` these signals are ignored: a launcher ends the other learners when
    the first one has ended, and none of them may then die of it.
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
