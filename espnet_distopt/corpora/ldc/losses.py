"""Counts what is left out of a corpus because it is damaged or lies outside its audio.

Nobody can mend the LDC's discs, so one bad line must not stop a user who has 2,000
hours of good ones. But where much is bad, it is more likely that the paths are wrong.
"""

from collections.abc import Callable

from espnet_distopt.errors import InputError

MAX_LOST = 1.0
"""How much may be left out by default, in percent."""


class Losses:
    """The parts of one kind that were left out, and how many were kept.

    Args:
        what: What the parts are, in the plural, for messages.
        most: How much may be left out, in percent; 0 makes the first one an error.

    Attributes:
        kept: The number of parts that were kept; whoever reads them adds to it.
    """

    def __init__(self, what: str, most: float = 0.0) -> None:
        self.kept = 0
        self._what = what
        self._most = most
        self._lost = 0
        self._first = ""

    def add(self, why: InputError | str) -> None:
        """Leave a part out.

        Args:
            why: What is wrong with it, with the file and the line.

        Raises:
            InputError: Nothing may be left out.
        """
        self._lost += 1
        self._first = self._first or str(why)
        if self._most <= 0:
            raise InputError(str(why))

    def check(self, log: Callable[[str], None]) -> None:
        """Tell how many parts were left out, if any were.

        Raises:
            InputError: More were left out than may be; the message has the first one.
        """
        if not self._lost:
            return
        counts = f"{self._lost} of {self._lost + self.kept} {self._what}"
        if 100 * self._lost > self._most * (self._lost + self.kept):
            raise InputError(
                f"{self._first} ({counts} are bad, more than {self._most:g} %: check "
                "the paths, or leave them out with --max_lost 100)"
            )
        log(f"left out: {counts}, the first: {self._first}")
