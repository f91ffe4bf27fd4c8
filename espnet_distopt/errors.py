"""The errors that a user can act on, and the way in which a command shows them.

An `InputError` is the user's to mend, and its message says how. A `PeerLostError` names
the learner that has died. A command shows an `InputError` as one line, without a
traceback, and ends with exit code 2.
"""

import difflib
import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
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


def message(error: BaseException) -> str:
    """Return the message of an error; it never raises.

    Some errors cannot be printed once they have come from a worker of a `DataLoader`,
    as soundfile's, whose `__str__` expects other arguments than the text that PyTorch
    has put there. The message is that text then, and the error also gets it as a note,
    which Python prints below the traceback.
    """
    try:
        return str(error)
    except Exception:
        text = "\n".join(each for each in error.args if isinstance(each, str))
        if text and not hasattr(error, "__notes__"):
            error.add_note(text)
        return text


def in_words(error: BaseException) -> str:
    """Return the class of an error and the first line of its message; it never raises.

    If a worker of a `DataLoader` has raised it, the line is that of its traceback.
    """
    name = type(error).__name__
    first, *rest = message(error).strip().splitlines() or [""]
    if rest and rest[0].startswith("Original Traceback"):
        raised = [line for line in rest if name in line.partition(":")[0]]
        first = raised[-1].partition(":")[2].strip() if raised else first
    return f"{name}: {first}".rstrip(": ")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word; empty if none is like it.

    >>> did_you_mean("adpsdg", ["adpsgd", "bmuf"]), did_you_mean("x", ["adpsgd"])
    ('; did you mean adpsgd?', '')
    """
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


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


def end_in_a_line(where: str) -> None:
    """Let some errors that end the process print one line instead of a traceback.

    They are an InputError, the loss of another learner, and Ctrl-C. The line begins
    with the place in the user's program: the last file and line of the traceback that
    are neither this package's nor Python's or an installed one's, as a context
    manager's or an optimizer's. Other errors are printed as before.

    Args:
        where: Who ends, in words.
    """
    hook: Callable[..., object] = sys.excepthook
    if isinstance(hook, functools.partial) and hook.func is _show:
        hook = hook.args[1]
    sys.excepthook = functools.partial(_show, where, hook)


def _show(
    where: str,
    before: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Print a line in place of a traceback, or call the hook that was there before."""
    if isinstance(error, KeyboardInterrupt):
        line = f"{where}: stopped by Ctrl-C"
    elif isinstance(error, InputError | PeerLostError):
        line = f"{_place(trace)}{type(error).__name__}: {error}"
    else:
        before(kind, error, trace)
        return
    print(line, file=sys.stderr, flush=True)


def _place(trace: TracebackType | None) -> str:
    installed = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    others = [str(Path(__file__).parent), *installed]
    for frame in reversed(traceback.extract_tb(trace)):
        if frame.filename.startswith("<frozen "):  # Python's own, as `-m` runs by it.
            continue
        if not any(Path(frame.filename).is_relative_to(each) for each in others):
            return f"{frame.filename}:{frame.lineno}: "
    return ""
