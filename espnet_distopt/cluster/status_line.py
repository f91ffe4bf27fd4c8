"""Shows the state of a job in one line."""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

QUIET_SECONDS = 30.0


class StatusLine:
    """Shows a state in one line of a terminal, or else in a new line for each change.

    Args:
        out: The terminal or file to write to.
        clock: Returns the time in seconds, from any origin.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self.out, self.clock = out, clock
        self.state = self.detail = ""
        self.shown = float("-inf")
        self.live = out.isatty()

    def show(self, state: str, detail: str) -> None:
        """Show a state, and a detail that may change often; a file gets fewer lines."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            text = f"{state}: {detail}" if detail else state
            self.out.write(f"\r\x1b[K{_printable(text)[:width]}")
            self.out.flush()
            return
        quiet = self.clock() - self.shown < QUIET_SECONDS
        if state == self.state and (quiet or detail == self.detail):
            return
        stamp = time.strftime("%H:%M:%S")
        text = f"{state}: {detail}" if detail else state
        print(f"{stamp} {_printable(text)}", file=self.out, flush=True)
        self.state, self.detail, self.shown = state, detail, self.clock()

    def end(self) -> None:
        """Leave the line as it is, so that what follows begins a new one."""
        if self.live:
            self.out.write("\n")
            self.out.flush()


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
