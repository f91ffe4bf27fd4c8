"""Signals that ask a learner for a stop.

A scheduler that is about to end a job first signals its processes. A person who wants a
training to stop does the same, or presses Ctrl-C.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType

from espnet_distopt.errors import STOPPED

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""The signals that ask for a stop."""


class Stopped(SystemExit):
    """Ends the process after a stop that was asked for, which is no error."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class _Handler:
    """Passes signals on to a request, and lets a second Ctrl-C interrupt."""

    def __init__(self, request: Callable[[str], None]) -> None:
        self._request = request

    def __call__(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        self._request(signal.Signals(number).name)


def _leave_group() -> None:
    """Let a forked process have a group of its own, if its parent listens."""
    if isinstance(signal.getsignal(signal.SIGTERM), _Handler):
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_group)


@contextmanager
def on_stop_signal(
    request: Callable[[str], None], signals: Iterable[int] = SIGNALS
) -> Generator[None, None, None]:
    """While the body runs, let each signal call `request`, and do nothing else.

    A second Ctrl-C raises KeyboardInterrupt, as without this. A process that ignores
    Ctrl-C, because a shell has started it in the background, goes on ignoring it.
    Python lets only the main thread handle signals. On another thread this does
    nothing, and the program that has started the thread handles them.

    If the body ends by `Stopped`, the signals are ignored from then on. A launcher
    signals the other learners when the first one has ended, and they must not die of
    that before they have ended by themselves.

    Processes that are forked meanwhile, such as those that read the data, leave this
    one's process group. A signal to the group, as by `timeout` or torchrun, would kill
    them, and PyTorch makes an error of their death. They end with this process.

    `request` is called with the name of the signal.
    """
    handle = _Handler(request)
    main = threading.current_thread() is threading.main_thread()
    heard = [n for n in signals if main and signal.getsignal(n) is not signal.SIG_IGN]
    after = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    except Stopped:
        after = dict.fromkeys(heard, signal.SIG_IGN)
        raise
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)
