"""Faults of a simulation: what happens to which learner, and when."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from espnet_distopt.errors import InputError

Kind = Literal["crash", "silence", "join"]
"""A crash ends a learner, and others notice at once that its connections are closed. A
silence stops it for some seconds, in which its connections stay open. A join starts a
replacement of a learner that is dead; it does nothing if the learner lives."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A scheduled event of one learner.

    Attributes:
        at: the virtual second at which it happens.
        rank: the learner.
        kind: what happens to it.
        seconds: how long a silence lasts; 0 for other kinds.

    Raises:
        InputError: a figure is out of its range, or the kind is unknown.
    """

    at: float
    rank: int
    kind: Kind
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(
                f"a fault is one of {', '.join(get_args(Kind))}, not '{self.kind}'"
            )
        if not 0 <= self.at < math.inf:
            raise InputError(f"a fault happens at seconds >= 0, not {self.at}")
        if self.kind == "silence" and not 0 < self.seconds < math.inf:
            raise InputError(f"a silence lasts seconds > 0, not {self.seconds}")
        if self.kind != "silence" and self.seconds:
            raise InputError(f"a {self.kind} lasts no seconds, not {self.seconds}")

    def __str__(self) -> str:
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        verb = {"crash": "crashes", "silence": "is silent", "join": "joins"}[self.kind]
        return f"learner {self.rank} {verb} at {self.at:g} s{lasting}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Return the fault that RANK:KIND:SECOND says; for a silence, also :SECONDS.

        Raises:
            InputError: `text` does not have this form.

        Example:
            >>> print(Fault.parse("3:crash:20"))
            learner 3 crashes at 20 s
            >>> print(Fault.parse("3:silence:20:45"))
            learner 3 is silent at 20 s for 45 s
        """
        rank, _, rest = text.partition(":")
        kind, *times = rest.split(":")
        try:
            at, seconds = map(float, times if len(times) == 2 else [*times, "0"])
            return cls(at=at, rank=int(rank), kind=kind, seconds=seconds)  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(f"'{text}': {error}") from None
        except ValueError:
            raise InputError(
                f"'{text}' is not a fault: RANK:crash:SECOND, RANK:join:SECOND or "
                "RANK:silence:SECOND:SECONDS"
            ) from None


class Outages:
    """The learners that do nothing now, and what waits for their return."""

    def __init__(self) -> None:
        self._deferred: dict[int, list[Callable[[], None]]] = {}

    def down(self, rank: int) -> bool:
        """Return whether a learner does nothing now."""
        return rank in self._deferred

    def begin(self, rank: int) -> None:
        """Let a learner do nothing from now on."""
        self._deferred.setdefault(rank, [])

    def end(self, rank: int) -> list[Callable[[], None]]:
        """Let a learner act again; return what it is to do, in order."""
        return self._deferred.pop(rank, [])

    def when_up(self, rank: int, act: Callable[[], None]) -> None:
        """Call `act` now, or when the learner returns if it does."""
        if rank in self._deferred:
            self._deferred[rank].append(act)
        else:
            act()
