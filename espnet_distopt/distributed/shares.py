"""An epoch's items in equal shares, of which one group takes what another has left."""

from collections.abc import Sequence

from espnet_distopt.distributed.liveness import Store

_BACK = 1 << 32
"""What an item taken at the back of a share counts in its counter; at the front: 1."""

MOST_ITEMS = 1 << 30
"""Items that an epoch may have, so that a counter stays below 2**63, which stores keep.

At the front a group counts its share, and one more in each run that finds it empty. At
the back the share is counted; and beyond it by each of G groups once at most, those
that had read the counter before the share was empty: 1 or items / 2G. So the front
stays below 2**32, and the back below 2**31.
"""


class Shares:
    """The shares of an epoch's items, one for each group of learners, in a store.

    Share g of G holds the items g, g + G, g + 2G, ... Its group takes them from the
    front, others from the back. One counter a share tells how many have been taken at
    either end; it is changed by atomic additions alone, whose results say who has got
    what. The first item of a share is its group's: each trains on one at least.

    Args:
        store: that all groups reach.
        group: whose share is taken from the front here.
        groups: how many there are.
        items: of the epoch; at most `MOST_ITEMS`.
        prefix: of the keys in the store.
    """

    def __init__(
        self, store: Store, group: int, groups: int, items: int, prefix: str = ""
    ) -> None:
        self._store = store
        self._group = group
        self._shares = [range(g, items, groups) for g in range(groups)]
        self.keys = [f"{prefix}share/{g}" for g in range(groups)]

    def begin(self, taken: Sequence[int]) -> range:
        """Set this group's counter, before anybody takes; return what it may take.

        Args:
            taken: what `taken` has returned in an earlier run, or zeros.
        """
        own = taken[self._group]
        self._store.set(self.keys[self._group], str(own))
        front, _ = _ends(own)
        return self._shares[self._group][front:]

    def taken(self) -> list[int]:
        """Return all counters. Cost: one operation, of G numbers."""
        return [int(count) for count in self._store.multi_get(self.keys)]

    def take(self) -> bool:
        """Take the next item of this group's share, unless others have. Cost: one."""
        front, back = _ends(self._store.add(self.keys[self._group], 1))
        size = len(self._shares[self._group])
        return size > 0 if front == 1 else front + back <= size

    def steal(self, most: int) -> Sequence[int]:
        """Take from the back of the share with most left; nothing: none has any left.

        Cost: two operations, more if others were faster.

        Args:
            most: items at a time. Fewer, as soon as these would be more than half of
                what the G groups have left each: else others would wait for them.
        """
        while True:
            left = [
                _left(count, len(share))
                for count, share in zip(self.taken(), self._shares, strict=True)
            ]
            victim = max(range(len(left)), key=left.__getitem__)
            if left[victim] == 0:
                return ()
            number = min(most, max(1, sum(left) // (2 * len(left))))
            count = self._store.add(self.keys[victim], number * _BACK)
            got = _from_back(self._shares[victim], count, number)
            if got:
                return got


def _ends(count: int) -> tuple[int, int]:
    """Return how many items a counter says have been taken at the front and back."""
    return count % _BACK, count // _BACK


def _left(count: int, size: int) -> int:
    """Return how many of `size` items are left to others."""
    front, back = _ends(count)
    return max(0, size - back - max(front, 1))


def _from_back(share: range, count: int, number: int) -> range:
    """Return what is got of `share` by the addition of `number` that made `count`.

    The counter may be beyond the share at both ends: others have been faster. A
    negative end of a slice would count from the back, and deal items twice.
    """
    front, back = _ends(count)
    end = len(share) - back + number
    return share[max(front, 1, len(share) - back) : max(0, end)]
