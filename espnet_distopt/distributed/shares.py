"""The items of an epoch in equal shares, each with one record in the store.

A group of learners that step together has one share. The group takes items from the
front of its own share, and other groups steal items from the back. One text in the
rendezvous store, the share's record (`share_record`), says how many items have been
taken at either end, and who holds items that were taken there and are not finished. It
changes by compare-and-set alone (`share_store`).

A race for the last item of Ben's share, which is [1, 3, 5], between Ben and Anna. The
record is written as (taken at the front, taken at the back):

    1. The first item of a share is its group's from the beginning, so Ben's record is
       (1, 0).
    2. Anna's share is empty. She reads all records, and sees that 2 items are left in
       Ben's share. She decides to steal one from there.
    3. Before she does, Ben changes (1, 0) to (2, 0): item 3 is his.
    4. Anna asks to change (1, 0) to (1, 1). The store returns (2, 0). One item is still
       left, so she changes (2, 0) to (2, 1), which also says that she holds item 5.
    5. Ben asks to change (2, 0) to (3, 0). The store returns (2, 1). Nothing is left of
       his share of 3, so he takes nothing.

What could go wrong, and why it does not:

    If a group died after it had taken items, nobody might train on them. But the change
    by which it takes them also says that it holds them, until it begins with them. When
    a group has died and all shares are empty, the others claim what it held: one change
    of the same record gives the items to another holder. So there is no moment at which
    a death loses an item.

    If a group was only stopped, and goes on after the others have given it up, it might
    train on what they have claimed. But to begin with an item that it holds is a change
    of the record, too. The group then finds that it does not hold the item any more,
    and ends with an error. Nor does it take an item from the front of its share if
    another learner was started in its place, because the record names the incarnation
    that owns the share.

    If Ben were so slow that Anna stole his whole share, he would make no step in the
    epoch. But the first item of a share is taken before anybody can steal.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.queue_left import Left
from espnet_distopt.distributed.share_record import First, Hold, Record
from espnet_distopt.distributed.share_store import Change, GivenUp, ShareStore

MOST_ITEMS = 1 << 30
"""The most items that an epoch may have. A save keeps the numbers of items taken at the
front and at the back of a share in the two halves of one number of 64 bits."""


class Shares:
    """The shares of an epoch's items, one for each group of learners, in a store.

    Share g of G holds the items g, g + G, g + 2G, ... Its group takes them from the
    front, other groups from the back. The first item of a share is its group's from the
    beginning, so that each group trains on one item at least.

    A change of a record costs one operation of the store, and one more each time that
    others have changed the record since this group has last seen it. Whatever changes
    one raises `GivenUp` if the others go on without this learner.

    Args:
        store: the store, which all groups reach.
        group: number of this learner's group, which takes from the front of its share.
        groups: number of groups, G.
        items: number of items of the epoch; at most `MOST_ITEMS`.
        prefix: the beginning of all keys in the store.
        incarnation: how often this learner was started before.
        repeats: whether others train again on the item that the group was training on,
            if it dies.

    Attributes:
        records: the records of the shares.
    """

    def __init__(
        self,
        store: Store,
        group: int,
        groups: int,
        items: int,
        prefix: str = "",
        *,
        incarnation: int = 0,
        repeats: bool = False,
    ) -> None:
        self._group, self._incarnation, self._repeats = group, incarnation, repeats
        self._shares = [range(g, items, groups) for g in range(groups)]
        # Of equally long shares each group prefers another one, so that few collide.
        self._others = [(group + 1 + g) % groups for g in range(groups)]
        self.records = ShareStore(store, groups, prefix, f"{group}.{incarnation}")
        # The records in which the group holds items, and has begun with one.
        self._place, self._begun = group, -1

    # The beginning

    def first(self, left: Left) -> tuple[list[int], range]:
        """Return what the group holds at the beginning, and what is left of its share.

        Args:
            left: what is left of the queue.
        """
        record = left.record(self._group, self._shares[self._group])
        held = record.holds[0].items if record.holds else ()
        return list(held), self._rest(record)

    def begin(self, left: Left) -> None:
        """Write this group's record: one operation of the store.

        All groups must have done so before the first one takes an item.

        Args:
            left: what is left of the queue.
        """
        share = self._shares[self._group]
        record = left.record(self._group, share, self._incarnation)
        if not self.records.begin(self._group, record):
            raise GivenUp  # The others have adopted the share.

    def adopt(self, absent: Iterable[int], left: Left) -> None:
        """Write the records of groups that have died before the epoch.

        All other groups do so, each before it takes an item.

        Args:
            absent: the groups, which may not have begun.
            left: what is left of the queue.
        """
        for group in absent:
            self.records.begin(group, left.record(group, self._shares[group]))

    def join(self) -> range:
        """Own the share of a learner that has died; return what is left of it.

        The one before cannot take from it any more. Cost: one operation of the store,
        and a change.
        """
        self.records.read()
        record = self.records.change(self._group, self._joined)
        assert record is not None
        return self._rest(record)

    def _joined(self, record: Record) -> Record:
        if record.owner > self._incarnation:
            raise GivenUp
        return replace(record, owner=self._incarnation)

    def _rest(self, record: Record) -> range:
        share = self._shares[self._group]
        return share[record.front : len(share) - record.back]

    # The items of this group

    def take(self) -> bool:
        """Begin with the next item of the own share; return False if others have it.

        Cost: a change.
        """
        self._finish_unless_in(self._group)
        if self.records.change(self._group, self._taken) is None:
            return False
        self._begun = self._group
        return True

    def _taken(self, record: Record) -> Record | None:
        if record.owner != self._incarnation:
            raise GivenUp
        if not self._left(self._group, record):
            return None
        item = self._shares[self._group][record.front]
        taken = replace(record, front=record.front + 1)
        return self._holding(taken, [item] if self._repeats else [], First.BEGUN)

    def begin_held(self, item: int) -> bool:
        """Begin with an item that this group holds; return whether it is a new one.

        It is not if one that has died had begun with it. Cost: a change.

        Args:
            item: its number.
        """
        self._finish_unless_in(self._place)
        holds: list[Hold] = []

        def begun(record: Record) -> Record:
            hold = self._hold(record)
            if hold is None or item not in hold.waiting:
                raise GivenUp
            holds.append(hold)
            after = hold.items.index(item) + int(not self._repeats)
            return self._holding(record, hold.items[after:], First.BEGUN)

        self.records.change(self._place, begun)
        self._begun = self._place
        return holds[-1].first is not First.AGAIN or holds[-1].items[0] != item

    def finish(self) -> None:
        """Note that the item with which this group has begun is not to be repeated.

        Cost: a change if items are repeated, else nothing. To begin with another item
        in the same record notes it, too.
        """
        place, self._begun = self._begun, -1
        if self._repeats and place >= 0:
            self.records.change(place, self._finished)

    def _finished(self, record: Record) -> Record:
        hold = self._hold(record)
        if hold is None:
            raise GivenUp
        return self._holding(record, hold.waiting)

    def _finish_unless_in(self, place: int) -> None:
        if self._begun != place:
            self.finish()

    # The items of others

    def steal(self, most: int) -> Sequence[int]:
        """Take items from the back of the share that has most left, and return them.

        Returns nothing if no share has any left. Cost: one operation of the store, and
        a change; one more change if items are repeated.

        Args:
            most: the most items to take at a time. Fewer are taken once `most` is more
                than half of what a group has left on average; otherwise the others
                would wait for this group at the end of the epoch.
        """
        self.finish()
        self.records.read()
        while True:
            left = [self._left(g, record) for g, record in enumerate(self.records.seen)]
            victim = max(self._others, key=left.__getitem__)
            if left[victim] == 0:
                return ()
            number = min(most, max(1, sum(left) // (2 * len(left))))
            held = self._change_and_hold(victim, self._stolen(victim, number))
            if held is not None:
                return held.items

    def _stolen(self, victim: int, most: int) -> Change:
        share = self._shares[victim]

        def stolen(record: Record) -> Record | None:
            number = min(most, self._left(victim, record))
            end = len(share) - record.back
            taken = replace(record, back=record.back + number)
            return self._holding(taken, share[end - number : end]) if number else None

        return stolen

    def claim(self, dead: Mapping[int, int], most: int) -> Hold | None:
        """Take items that a dead group had not finished; None if there are none.

        `steal` or `join` comes before, and has read the records. Cost: a change.

        Args:
            dead: group -> the greatest incarnation of its first learner that has died.
            most: the most items to take; the rest stays for later claims.

        Returns:
            What this group then holds.
        """
        for place in range(len(self._shares)):
            held = self._change_and_hold(place, self._claimed(dead, most))
            if held is not None:
                return held
        return None

    def _claimed(self, dead: Mapping[int, int], most: int) -> Change:
        def claimed(record: Record) -> Record | None:
            hold = record.of_dead(dead)
            if hold is None:
                return None
            left = hold.left_by_dead()
            rest = record.with_hold(
                replace(hold, items=hold.items[most:], first=First.NEW)
            )
            return self._holding(rest, left.items[:most], left.first)

        return claimed

    # One record

    def _left(self, group: int, record: Record) -> int:
        return len(self._shares[group]) - record.front - record.back

    def _hold(self, record: Record) -> Hold | None:
        """Return what this group holds in a record."""
        return record.of(self._group, self._incarnation)

    def _holding(
        self, record: Record, items: Sequence[int], first: First = First.NEW
    ) -> Record:
        """Return a record in which this group holds other items than before."""
        if first is First.BEGUN and not self._repeats:
            first = First.NEW  # It does not hold what it has begun with.
        return record.with_hold(
            Hold(self._group, self._incarnation, tuple(items), first)
        )

    def _change_and_hold(self, place: int, change: Change) -> Hold | None:
        """Change a record so that this group holds items in it, and return these."""
        record = self.records.change(place, change)
        if record is None:
            return None
        self._place = place
        return self._hold(record)
