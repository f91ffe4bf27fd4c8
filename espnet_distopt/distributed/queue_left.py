"""What is left of a work queue: everything, or what a run that was stopped has saved.

A save names what each group had taken and not begun, not only the group of the learner
that saves. So the items of a group that had died are not forgotten, nor are those of
one that dies before it has opened the queue again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet_distopt.distributed.share_record import First, Hold, Record

_BACK = 1 << 32
"""In a save, an item taken at the back of a share counts this much; at the front, 1."""


@dataclass(frozen=True)
class Left:
    """What is left of a queue, as one learner knows it that opens the queue.

    Attributes:
        taken: for each share, how many items had been taken from it: the number at the
            front, and 2**32 times the number at the back.
        started: number of items that had been begun.
        held: for each group, the items that it had taken and not begun.
        again: those of `held` that `started` has counted already, because one that has
            died had begun with them and they are to be repeated.
    """

    taken: Sequence[int]
    started: int
    held: Sequence[Sequence[int]]
    again: Sequence[int] = ()

    @classmethod
    def everything(cls, groups: int) -> "Left":
        """Return what is left of a queue that begins.

        Args:
            groups: number of groups.
        """
        return cls([0] * groups, 0, [[]] * groups)

    @classmethod
    def saved(cls, state: dict[str, Any], group: int) -> "Left":
        """Return what is left of a queue that was saved.

        What a group had taken, its own save says in `held`, where a loop may have put
        back what it had only read. The save of another group says it in `unfinished`.

        Args:
            state: what `WorkQueue.state_dict` has returned.
            group: the number of this learner's group.
        """
        held = list(state["unfinished"])
        if state["group"] == group:
            held[group] = state["held"]
        return cls(state["taken"], state["started"], held, state["again"])

    def record(self, group: int, share: range, incarnation: int = 0) -> Record:
        """Return the record of a share at the beginning.

        Args:
            group: the number of its group, which has the first item without taking it.
            share: the items of the share.
            incarnation: how often the group's first learner was started before.
        """
        taken, held = self.taken[group], self.held[group]
        front, back = taken % _BACK, taken // _BACK
        if share and taken == 0:
            front, held = 1, [*held, share[0]]
        again = bool(held) and held[0] in self.again
        first = First.AGAIN if again else First.NEW
        record = Record(front, back, incarnation)
        return record.with_hold(Hold(group, incarnation, tuple(held), first))


def save(records: Sequence[Record], dead: Mapping[int, int]) -> dict[str, Any]:
    """Return what `Left.saved` reads, but for what one group alone knows.

    A living group has finished the item with which it has begun, because it takes items
    no more. That of a dead one is to be repeated.

    Args:
        records: those of all shares.
        dead: group -> the greatest incarnation of its first learner that has died.
    """
    unfinished: list[list[int]] = [[] for _ in records]
    again = []
    for hold in (hold for record in records for hold in record.holds):
        left = hold.left_by_dead() if hold.is_of(dead) else hold
        if left.first is First.AGAIN:
            again.append(left.items[0])
        unfinished[hold.group] += left.waiting
    return {
        "taken": [record.front + record.back * _BACK for record in records],
        "started": sum(record.begun for record in records),
        "unfinished": unfinished,
        "again": again,
    }
