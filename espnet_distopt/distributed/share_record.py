"""All that the store knows of one share of a work queue, as one text.

A record says how many items have been taken at either end of the share, and who holds
items that were taken there and are not finished. It is the value of one key, so that
whatever happens to an item is one change of one value. So an item is always in exactly
one place, even if a learner dies between two operations of the store.

Here is the record of group 1's share of six items, of which group 0 has stolen two:

    owner 0, front 2, back 2, holds: group 0 holds items 7 and 9

Group 1 has taken two items at the front and has begun with both, so it holds none.
When group 0 begins with item 7, it holds item 9 alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum


class First(IntEnum):
    """What has become of the first item that a group holds.

    Attributes:
        NEW: nobody has begun with it.
        AGAIN: one that has died had begun with it, and the holder is to repeat it.
        BEGUN: the holder is training on it.
    """

    NEW = 0
    AGAIN = 1
    BEGUN = 2


@dataclass(frozen=True)
class Hold:
    """Items that a group has taken and not finished.

    Attributes:
        group: the group.
        incarnation: how often its first learner had been started before it took them.
        items: the items, in the order in which the group trains on them.
        first: what has become of the first one.
    """

    group: int
    incarnation: int
    items: tuple[int, ...]
    first: First = First.NEW

    @property
    def waiting(self) -> tuple[int, ...]:
        """The items with which the group has not begun."""
        return self.items[int(self.first is First.BEGUN) :]

    @property
    def uncounted(self) -> int:
        """The number of items with which nobody has begun."""
        return len(self.items) - int(self.first is not First.NEW)

    def left_by_dead(self) -> "Hold":
        """Return what others find of this after a death: all of it waits."""
        new = self.first is First.NEW
        return replace(self, first=First.NEW if new else First.AGAIN)

    def is_of(self, dead: Mapping[int, int]) -> bool:
        """Return whether the group died while it held them.

        Args:
            dead: group -> the greatest incarnation of its first learner that has died.
        """
        return self.incarnation <= dead.get(self.group, -1)

    def text(self, stride: int) -> str:
        """Return the hold as a text, in which a run of items is one short entry.

        Args:
            stride: the distance of two neighbours in a share.
        """
        numbers = ",".join(f"{item}x{count}" for item, count in _runs(self, stride))
        return f"{self.group}.{self.incarnation}.{int(self.first)}.{numbers}"

    @classmethod
    def parse(cls, text: str, stride: int) -> "Hold":
        """Return the hold that `text` has made this text of."""
        group, incarnation, first, numbers = text.split(".")
        runs = (run.split("x") for run in numbers.split(","))
        items = (
            int(item) + stride * number
            for item, count in runs
            for number in range(int(count))
        )
        return cls(int(group), int(incarnation), tuple(items), First(int(first)))


def _runs(hold: Hold, stride: int) -> list[tuple[int, int]]:
    """Return the items of a hold as runs: the first item of each and their number."""
    runs: list[tuple[int, int]] = []
    for item in hold.items:
        if runs and item == runs[-1][0] + stride * runs[-1][1]:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((item, 1))
    return runs


@dataclass(frozen=True)
class Record:
    """What has been taken of a share, and what of it is not finished.

    Attributes:
        front: number of items taken at the front, by the share's own group.
        back: number of items taken at the back, by others.
        owner: the incarnation of the own group's first learner.
        holds: the items that are taken and not finished; one hold for each holder.
        change: names the last change, as no other change of the queue is named.
    """

    front: int = 0
    back: int = 0
    owner: int = 0
    holds: tuple[Hold, ...] = ()
    change: str = ""

    def of(self, group: int, incarnation: int) -> Hold | None:
        """Return what one group holds here; None if it holds nothing."""
        for hold in self.holds:
            if (hold.group, hold.incarnation) == (group, incarnation):
                return hold
        return None

    def of_dead(self, dead: Mapping[int, int]) -> Hold | None:
        """Return what a dead group holds here; None if none does."""
        return next((hold for hold in self.holds if hold.is_of(dead)), None)

    def with_hold(self, hold: Hold) -> "Record":
        """Return the record with this in the place of what its group held before."""
        before = self.of(hold.group, hold.incarnation)
        others = tuple(each for each in self.holds if each is not before)
        return replace(self, holds=(*others, hold) if hold.items else others)

    @property
    def begun(self) -> int:
        """The number of items with which somebody has begun."""
        uncounted = sum(hold.uncounted for hold in self.holds)
        return self.front + self.back - uncounted

    def text(self, stride: int) -> str:
        """Return the record as a text, of `groups` shares."""
        holds = ";".join(hold.text(stride) for hold in self.holds)
        return f"{self.front}|{self.back}|{self.owner}|{holds}|{self.change}"

    @classmethod
    def parse(cls, text: str, stride: int) -> "Record":
        """Return the record that `text` has made this text of."""
        front, back, owner, holds, change = text.split("|")
        parsed = (Hold.parse(hold, stride) for hold in holds.split(";") if hold)
        return cls(int(front), int(back), int(owner), tuple(parsed), change)
