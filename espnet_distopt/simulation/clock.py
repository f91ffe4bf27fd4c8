"""The module has the virtual clock of a simulation."""

import heapq
from collections.abc import Callable


class Clock:
    """A virtual clock with its events, ordered by (nanoseconds, sequence number).

    Attributes:
        now: the virtual time, in nanoseconds. It is an integer, because rounding would
            make equal times of a float unequal.
    """

    def __init__(self) -> None:
        self.now = 0
        self._number = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def later(self, seconds: float) -> int:
        """Return the time, in nanoseconds, that is `seconds` from now."""
        return self.now + round(seconds * 1e9)

    def at(self, nanoseconds: int, act: Callable[[], None]) -> None:
        """Call `act` at a time; acts of one time are called in the order of asking."""
        self._number += 1
        heapq.heappush(self._events, (nanoseconds, self._number, act))

    def tick(self) -> bool:
        """Move on to the next event and run it; return False if there is none."""
        if not self._events:
            return False
        self.now, _, act = heapq.heappop(self._events)
        act()
        return True

    def next(self) -> int | None:
        """Return the time, in nanoseconds, of the next event, or None."""
        return self._events[0][0] if self._events else None
