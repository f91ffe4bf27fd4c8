"""A group of learners that step together takes the items of a work queue as one.

The first learner of the group asks the rendezvous store, and broadcasts the answer to
the others, so that all of them train on the same items. The items come from the group's
own share first, then from the shares of others, and at last from what dead groups had
taken and not finished (`shares`).

A learner asks only while it has a lease: one that was stopped for long hears first
whether the others have given it up.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from espnet_distopt.core.driver import Driver
from espnet_distopt.core.effects import Broadcast, Program
from espnet_distopt.distributed.queue_left import Left, save
from espnet_distopt.distributed.share_record import First
from espnet_distopt.distributed.shares import Shares

WHAT = "asking the work queue's store"
"""The words in which errors of the store say what was under way."""


class QueueGroup:
    """The items of one queue that the group of this learner takes.

    Either `open` or `join` comes first.

    Attributes:
        number: the number of the group.
        keys: the keys of all groups in the store.
        held: the items that the group has taken and not begun, in their order.
        own: the rest of the group's own share, of which others may take the last items.
        started: number of items that all groups together have begun to train on, as
            this learner last heard from the store.

    Args:
        driver: this learner's driver.
        rank: its rank.
        ranks: the ranks of the group, in ascending order.
        groups: number of groups.
        items: number of items of the queue.
        prefix: the beginning of the queue's keys in the store.
        ahead: the most items that the group takes from others at a time.
        repeats: whether others train again on the item that the group was training on,
            if it dies.
    """

    def __init__(
        self,
        driver: Driver,
        rank: int,
        ranks: tuple[int, ...],
        groups: int,
        items: int,
        prefix: str,
        *,
        ahead: int,
        repeats: bool,
    ) -> None:
        self._driver, self._store = driver, driver.store
        self._rank, self._ranks = rank, ranks
        self._leads = rank == ranks[0]
        self.number, self._groups = ranks[0] // len(ranks), groups
        self._items, self._ahead = items, ahead
        self._started = prefix + "started"
        self._shares = Shares(
            self._store,
            self.number,
            groups,
            items,
            prefix,
            incarnation=driver.incarnation(rank),
            repeats=repeats,
        )
        self.keys = self._shares.records.keys
        self.held: list[int] = []
        self.own = range(0)
        self.started = 0

    # The beginning, inside `Driver.asking`

    def open(self, left: Left) -> None:
        """Write this group's record at the beginning of the queue.

        Args:
            left: what is left of the queue.
        """
        self.started = left.started
        self.held, self.own = self._shares.first(left)
        if self._leads:
            self._shares.begin(left)
        if self._leads and self.number == 0:
            self._begin_counter(left)

    def adopt(self, living: Collection[int], left: Left) -> None:
        """Let others do the shares of groups that have died before the epoch.

        Args:
            living: the ranks of the learners that have met at the beginning.
            left: as for `open`.
        """
        absent = self._without(living)
        self._shares.adopt(absent, left)
        if 0 in absent:
            self._begin_counter(left)

    def _begin_counter(self, left: Left) -> None:
        """Set the number of items that have been begun, unless others have done so."""
        self._store.compare_set(self._started, "", str(left.started))

    def join(self) -> None:
        """Go on where the learner has died in whose place this one has joined.

        The others are reading the queue. What the dead one had not begun, and others
        have not taken, is this learner's.
        """
        self.own = self._shares.join()
        before = {self.number: self._driver.incarnation(self._rank) - 1}
        self.held = list(self._take_over(before, self._items))
        self.count_started()

    def _without(self, living: Collection[int]) -> list[int]:
        """Return the groups that have died: one dies as a whole."""
        return [group for group, first in self._firsts() if first not in living]

    def _firsts(self) -> Iterator[tuple[int, int]]:
        """Return each group with its first learner."""
        return ((group, group * len(self._ranks)) for group in range(self._groups))

    # What is taken

    def begin(self, item: int) -> bool:
        """Begin with the next item; return False if others have taken it.

        Args:
            item: the first one of `held`, or else of `own`.
        """
        if self.held:
            self.held.pop(0)
            self._take(item, own=False)
        elif self._take(item):
            self.own = self.own[1:]
        else:
            self.own = self.own[:0]  # Others have taken the rest.
            return False
        return True

    def _take(self, item: int, own: bool = True) -> bool:
        """Count an item as begun; return False if others have it of the own share.

        One that was counted when a dead group began with it is not counted again.

        Args:
            item: its number.
            own: whether the item is of the own share; if not, it was taken before.
        """
        got = True
        if self._leads:
            with self._driver.asking(WHAT):
                self._driver.await_lease()
                if own:
                    got = new = self._shares.take()
                else:
                    new = self._shares.begin_held(item)
                self.started = self._store.add(self._started, int(new))
        told, self.started = self._from_leader([int(got), self.started])
        return told > 0

    def steal(self) -> bool:
        """Take items that others have not begun; return whether there were any."""
        items: Sequence[int] = ()
        if self._leads:
            with self._driver.asking(WHAT):
                self._driver.await_lease()
                dead = self._dead()
                items = self._shares.steal(self._ahead)
                items = items or self._take_over(dead, self._ahead)
        # The others of the group wait for a message of `ahead` numbers.
        assert len(items) <= self._ahead, (items, self._ahead)
        missing = [-1] * (self._ahead - len(items))
        items = self._from_leader([*items, *missing])
        self.held = [item for item in items if item >= 0]
        return bool(self.held)

    def _dead(self) -> dict[int, int]:
        """Return group -> the greatest incarnation of its first learner that has died.

        Of a group that lives, those before the present one have died.
        """
        dead = self._driver.dead
        return {
            group: dead.get(first, self._driver.incarnation(first) - 1)
            for group, first in self._firsts()
        }

    def _take_over(self, dead: Mapping[int, int], most: int) -> Sequence[int]:
        """Take items that a dead group had not finished, and say so in the log.

        Args:
            dead: group -> the greatest incarnation of its first learner that has died.
            most: the most items to take.
        """
        hold = self._shares.claim(dead, most)
        if hold is None:
            return []
        begun = " (it had begun the first one)" if hold.first is First.AGAIN else ""
        logging.warning(
            f"learner {self._rank} trains on what a dead learner had taken of the work "
            f"queue: {', '.join(map(str, hold.items))}{begun}"
        )
        return list(hold.items)

    def _from_leader(self, numbers: list[int]) -> list[int]:
        """Return the `numbers` of the group's first learner, which asks the store."""
        if len(self._ranks) == 1:
            return numbers
        told = torch.tensor(numbers)
        self._driver.run(_broadcast(told, self._ranks))
        return told.tolist()

    # What is left

    def count_started(self) -> int:
        """Ask the store how many items all groups together have begun.

        Unlike the counter, this is exact if a group has died between the two operations
        by which it takes an item.
        """
        self._shares.records.read()
        self.started = sum(record.begun for record in self._shares.records.seen)
        return self.started

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the queue, once no learner takes items any more."""
        self._shares.records.read()
        saved = save(self._shares.records.seen, self._dead())
        return {**saved, "held": list(self.held), "group": self.number}


def _broadcast(tensor: torch.Tensor, ranks: tuple[int, ...]) -> Program:
    yield Broadcast(tensor, ranks)
