"""A group of learners that step together takes the items of a work queue as one.

The first learner of the group asks the rendezvous store, and broadcasts the answer to
the others, so that all of them train on the same items. The items come from the group's
own share first, then from the shares of others (`shares`), and at last from what dead
groups had taken and not finished (`unfinished`).
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from espnet_distopt.core.driver import Driver
from espnet_distopt.core.effects import Broadcast, Program
from espnet_distopt.distributed.shares import Shares
from espnet_distopt.distributed.unfinished import Unfinished

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
        self._items, self._ahead, self._repeats = items, ahead, repeats
        self._started = prefix + "started"
        self._shares = Shares(self._store, self.number, groups, items, prefix)
        self._unfinished = Unfinished(self._store, self.number, groups, prefix)
        self.keys = [*self._shares.keys, *self._unfinished.keys]
        self.held: list[int] = []
        self.own = range(0)
        self.started = 0

    # The beginning, inside `Driver.asking`

    def open(self, taken: list[int], started: int, held: Sequence[int]) -> None:
        """Set this group's counters at the beginning of the queue.

        Args:
            taken: the counters of all shares in an earlier run, or zeros.
            started: number of items that had been begun.
            held: the items that this group had taken and not begun.
        """
        self.started = started
        self.own = self._shares.begin(taken)
        self.held = [*held, *self._shares.first(self.number, taken)]
        if self._leads:
            self._note_unfinished(self.held)
        if self._leads and self.number == 0:
            self._store.set(self._started, str(started))

    def adopt(self, living: Collection[int], taken: list[int]) -> None:
        """Let others do the shares of groups that have died before the epoch.

        Args:
            living: the ranks of the learners that have met at the beginning.
            taken: as for `open`.
        """
        absent = self._without(living)
        self._shares.adopt(absent, taken)
        for group in absent:
            self._unfinished.adopt(group, self._shares.first(group, taken))

    def join(self) -> None:
        """Go on where the learner has died in whose place this one has joined.

        The others are reading the queue. What the dead one had not begun, and others
        have not taken, is this learner's.
        """
        self.own = self._shares.join()
        before = {self.number: self._driver.incarnation(self._rank) - 1}
        self.held = self._take_over(before, self._items)
        self._note_unfinished(self.held)
        self.count_started()

    def _without(self, living: Collection[int]) -> list[int]:
        """Return the groups that have died: one dies as a whole."""
        firsts = range(0, self._groups * len(self._ranks), len(self._ranks))
        return [group for group, first in enumerate(firsts) if first not in living]

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

        Args:
            item: its number.
            own: whether the item is of the own share; if not, it was taken before.
        """
        got = True
        if self._leads:
            with self._driver.asking(WHAT):
                if own:
                    got = self._shares.take()
                self.started = self._store.add(self._started, int(got))
                if got and self._repeats:
                    self._note_unfinished([item, *self.held], begun=True)
                elif not own:
                    self._note_unfinished(self.held)
        told, self.started = self._from_leader([int(got), self.started])
        return told > 0

    def steal(self) -> bool:
        """Take items that others have not begun; return whether there were any."""
        items: Sequence[int] = ()
        if self._leads:
            with self._driver.asking(WHAT):
                dead = self._dead()
                items = self._shares.steal(self._ahead)
                items = items or self._take_over(dead, self._ahead)
                if items or self._repeats:
                    self._note_unfinished(items)
        # The others of the group wait for a message of `ahead` numbers.
        assert len(items) <= self._ahead, (items, self._ahead)
        missing = [-1] * (self._ahead - len(items))
        items = self._from_leader([*items, *missing])
        self.held = [item for item in items if item >= 0]
        return bool(self.held)

    def _note_unfinished(self, items: Sequence[int], begun: bool = False) -> None:
        """Note what others are to train on if this group dies."""
        number = self._driver.incarnation(self._rank)
        self._unfinished.note(number, items, begun)

    def _dead(self) -> dict[int, int]:
        """Return dead group -> the incarnation of its first learner, of one moment."""
        dead, per_group = self._driver.dead, len(self._ranks)
        firsts = ((group, group * per_group) for group in range(self._groups))
        return {group: dead[first] for group, first in firsts if first in dead}

    def _take_over(self, dead: Mapping[int, int], most: int) -> list[int]:
        """Take items that a dead group had not finished, and say so in the log.

        One that it had begun was counted as started, and is counted anew.

        Args:
            dead: group -> the greatest incarnation of its first learner that has died.
            most: the most items to take.
        """
        note = self._unfinished.claim(dead, most)
        if note is None:
            return []
        if note.begun:
            self._store.add(self._started, -1)
        begun = " (it had begun the first one)" if note.begun else ""
        logging.warning(
            f"learner {self._rank} trains on what a dead learner had taken of the work "
            f"queue: {', '.join(map(str, note.items))}{begun}"
        )
        return list(note.items)

    def _from_leader(self, numbers: list[int]) -> list[int]:
        """Return the `numbers` of the group's first learner, which asks the store."""
        if len(self._ranks) == 1:
            return numbers
        told = torch.tensor(numbers)
        self._driver.run(_broadcast(told, self._ranks))
        return told.tolist()

    # What is left

    def count_started(self) -> int:
        """Ask the store how many items all groups together have begun."""
        self.started = self._store.add(self._started, 0)
        return self.started

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the queue, once no learner takes items any more."""
        return {
            "taken": self._shares.taken(),
            "started": self._store.add(self._started, 0),
            "held": list(self.held),
        }


def _broadcast(tensor: torch.Tensor, ranks: tuple[int, ...]) -> Program:
    yield Broadcast(tensor, ranks)
