"""The items of an epoch in equal shares, each with one counter in the store.

A group of learners that step together has one share. The group takes items from the
front of its own share, and other groups steal items from the back. How many items have
been taken at either end is kept in one number in the rendezvous store, the share's
counter: an item taken at the front counts 1, and one taken at the back counts 2**32.
The counter is changed by atomic additions alone, and the store returns the new value.

A race for the last item of Ben's share, which is [1, 3, 5], between Ben and Anna. The
counter is written as (taken at the front, taken at the back):

    1. The first item of a share is its group's from the beginning, so Ben's counter is
       (1, 0).
    2. Anna's share is empty. She reads all counters, and sees that 2 items are left in
       Ben's share. She decides to steal one from there.
    3. Before she does, Ben adds 1 and gets (2, 0): item 3 is his.
    4. Anna adds 2**32 and gets (2, 1). Two items from the front and one from the back
       are three, so they do not overlap: item 5 is hers.
    5. Ben adds 1 and gets (3, 1). Together that is more than his share of 3, so the
       item has been stolen: Ben takes nothing.

What could go wrong, and why it does not:

    If Ben's step 5 came before Anna's step 4, he would get (3, 0) and item 5. She would
    get (3, 1), find that her item has gone, and look at all counters again. In either
    order the later addition sees the earlier one, so exactly one of them gets the item.

    If Ben were so slow that Anna stole his whole share, he would make no step in the
    epoch. But the first item of a share is counted as taken before anybody can steal.

    An addition that gets nothing still counts, so a counter may grow beyond its share
    at both ends. `MOST_ITEMS` is small enough for the two halves of the counter never
    to run into each other.
"""

from collections.abc import Iterable, Sequence

from espnet_distopt.distributed.liveness import Store

_BACK = 1 << 32
"""An item taken at the back of a share adds this to its counter; at the front, 1."""

MOST_ITEMS = 1 << 30
"""The most items that an epoch may have: a counter then stays below 2**63.

Stores keep integers below 2**63. At the front a group counts its share, and one more in
each run that finds the share empty. At the back the share is counted. Beyond it, each
of the G groups may count once more, if it has read the counter before the share was
empty: 1 or items / 2G. So the front stays below 2**32, and the back below 2**31.
"""


class Shares:
    """The shares of an epoch's items, one for each group of learners, in a store.

    Share g of G holds the items g, g + G, g + 2G, ... Its group takes them from the
    front, other groups from the back. One counter for each share says how many items
    have been taken at either end. The first item of a share is its group's from the
    beginning, so that each group trains on one item at least.

    Args:
        store: the store, which all groups reach.
        group: number of this learner's group, which takes from the front of its share.
        groups: number of groups, G.
        items: number of items of the epoch; at most `MOST_ITEMS`.
        prefix: the beginning of all keys in the store.

    Attributes:
        keys: the keys of the counters in the store, one for each share.
    """

    def __init__(
        self, store: Store, group: int, groups: int, items: int, prefix: str = ""
    ) -> None:
        self._store = store
        self._group = group
        self._shares = [range(g, items, groups) for g in range(groups)]
        self.keys = [f"{prefix}share/{g}" for g in range(groups)]

    def first(self, group: int, taken: Sequence[int]) -> range:
        """Return the item that a group has without taking it.

        Args:
            group: its number.
            taken: the counters that `taken` has returned in an earlier run, or zeros.

        Returns:
            The first item of its share; nothing if the earlier run had begun, or if the
            share is empty.
        """
        return self._shares[group][: int(taken[group] == 0)]

    def begin(self, taken: Sequence[int]) -> range:
        """Set this group's counter; return the items that the group may take.

        All groups must have done so before the first one takes an item.

        Args:
            taken: as for `first`.
        """
        own = max(1, taken[self._group])
        self._store.set(self.keys[self._group], str(own))
        front, _ = _taken_at_ends(own)
        return self._shares[self._group][front:]

    def join(self) -> range:
        """Return the items that are left to this group, whose learner was replaced."""
        front, back = _taken_at_ends(self.taken()[self._group])
        share = self._shares[self._group]
        return share[front : max(front, len(share) - back)]

    def adopt(self, absent: Iterable[int], taken: Sequence[int]) -> None:
        """Set the counters of groups that have died before the epoch.

        All other groups do so, each before it takes an item.

        Args:
            absent: the groups, which may not have begun.
            taken: as for `first`.
        """
        for group in absent:
            self._store.compare_set(self.keys[group], "", str(max(1, taken[group])))

    def taken(self) -> list[int]:
        """Return all counters. Cost: one operation of the store, of G numbers."""
        return [int(count) for count in self._store.multi_get(self.keys)]

    def take(self) -> bool:
        """Take the next item of this group's share; return False if others have it.

        Cost: one operation of the store.
        """
        front, back = _taken_at_ends(self._store.add(self.keys[self._group], 1))
        return front + back <= len(self._shares[self._group])

    def steal(self, most: int) -> Sequence[int]:
        """Take items from the back of the share that has most left, and return them.

        Returns nothing if no share has any left. Cost: two operations of the store, or
        more if other groups were faster.

        Args:
            most: the most items to take at a time. Fewer are taken once `most` is more
                than half of what a group has left on average; otherwise the others
                would wait for this group at the end of the epoch.
        """
        while True:
            left = [
                max(0, len(share) - sum(_taken_at_ends(count)))
                for count, share in zip(self.taken(), self._shares, strict=True)
            ]
            victim = max(range(len(left)), key=left.__getitem__)
            if left[victim] == 0:
                return ()
            number = min(most, max(1, sum(left) // (2 * len(left))))
            count = self._store.add(self.keys[victim], number * _BACK)
            got = _got_at_back(self._shares[victim], count, number)
            if got:
                return got


def _taken_at_ends(count: int) -> tuple[int, int]:
    """Return the numbers of items taken at the front and at the back, of a counter."""
    return count % _BACK, count // _BACK


def _got_at_back(share: range, count: int, number: int) -> range:
    """Return the items of `share` that an addition at the back has taken.

    The counter may be beyond the share at both ends, if others have been faster. The
    bounds of the slice are kept at 0 or more: Python would count a negative one from
    the end of the share, and items would be dealt twice.

    Args:
        share: the items of the share.
        count: the counter after the addition.
        number: number of items that were added at the back.
    """
    front, back = _taken_at_ends(count)
    end = len(share) - back + number
    return share[max(front, len(share) - back) : max(0, end)]
