"""The errors that a user can act on, and the way in which a command shows them.

An `InputError` is the user's to mend, and its message says how. A `PeerLostError` names
the learner that has died. A command shows an `InputError` as one line, without a
traceback, and ends with exit code 2.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Protocol

STOPPED = 75
"""The exit code of a process that was asked to stop and can be started again to go on
(EX_TEMPFAIL of sysexits.h)."""


class InputError(ValueError):
    """The user's input is wrong; the message says what, where, and what to do."""


class PeerLostError(RuntimeError):
    """A learner has died, or has been silent for too long; the message names it.

    Args:
        message: what this learner was doing, and the reason.
        reason: which learner is lost and why, without what this learner was doing; None
            means that it is the message.

    Attributes:
        reason: which learner is lost and why.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class Main(Protocol):
    """The type of a command's `main`.

    `main()` reads the process's command line; `main([...])` takes the arguments given.
    """

    def __call__(self, cmd: Sequence[str] | None = None) -> None: ...  # noqa: D102


def one_line_errors(main: Main) -> Main:
    """Return `main` with an InputError shown as one line, and exit code 2.

    Ctrl-C is shown as one line, too, with exit code 130.
    """

    @functools.wraps(main)
    def wrapper(cmd: Sequence[str] | None = None) -> None:
        try:
            main(cmd)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            print("stopped by Ctrl-C", file=sys.stderr)
            raise SystemExit(130) from None

    return wrapper
