"""The members of a run: the learners that live, in numbered versions.

Version 0 has every learner. Each death and each return makes a new version, so that two
learners that have the same version agree on who lives. Rings, colours and the groups of
collectives follow from the members.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Members:
    """The living learners.

    Attributes:
        version: the number of changes before; a larger one is newer.
        ranks: the ranks of the living learners, in ascending order.
    """

    version: int
    ranks: tuple[int, ...]

    @classmethod
    def everybody(cls, size: int) -> "Members":
        """Return version 0 of a run of `size` learners, in which all of them live."""
        return cls(0, tuple(range(size)))

    def without(self, lost: Iterable[int]) -> "Members":
        """Return the next version, in which the ranks in `lost` are missing."""
        gone = set(lost)
        left = tuple(rank for rank in self.ranks if rank not in gone)
        return Members(self.version + 1, left)


class Meeting(NamedTuple):
    """The result of a barrier, which is the same on all learners that have met.

    Attributes:
        pausing: whether any of them stops within the epoch.
        members: those that have met.
    """

    pausing: bool
    members: Members
