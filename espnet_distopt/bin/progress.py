"""What a command prints of its progress, for those who watch it."""

import time


def say(line: str) -> None:
    """Print a line at once, even into a file."""
    print(line, flush=True)


class ProgressLine:
    """Prints a line each time that so many more units of work are done.

    Args:
        line: The text, in which {done} and {total} stand for numbers of units.
        every: Number of units between two lines.
    """

    def __init__(self, line: str, every: int) -> None:
        self._line, self._every, self._next = line, every, every

    def __call__(self, done: int, total: int) -> None:
        """Tell how many units are done; there may be many more than the last time."""
        if done >= self._next:
            print(self._line.format(done=done, total=total), flush=True)
            self._next = done - done % self._every + self._every


class TimedProgressLine:
    """Prints a line when so many seconds have passed since the last one.

    Args:
        line: The text, in which {done} and {total} stand for numbers of units.
        seconds: Time between two lines.
    """

    def __init__(self, line: str, seconds: float) -> None:
        self._line, self._seconds, self._shown = line, seconds, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Tell how many units are done."""
        if time.monotonic() - self._shown >= self._seconds:
            print(self._line.format(done=done, total=total), flush=True)
            self._shown = time.monotonic()
