"""Errors that a user can act on, and how a command shows them."""

import functools
import sys
from collections.abc import Sequence
from typing import Protocol

STOPPED = 75
"""The exit code of a process that was asked to stop and can be started again to go on
(EX_TEMPFAIL of sysexits.h)."""


class InputError(ValueError):
    """Bad input from a user: the message says what, where, and what to do."""


class PeerLostError(RuntimeError):
    """A learner has died, or has been silent for too long; the message names it.

    Attributes:
        reason: who is lost and why, without what this learner was doing.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class Main(Protocol):
    """A command's entry: `main()` takes the command line, `main([...])` its own."""

    def __call__(self, cmd: Sequence[str] | None = None) -> None: ...  # noqa: D102


def one_line_errors(main: Main) -> Main:
    """Make a command's `main` end bad input with one line and exit code 2."""

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
