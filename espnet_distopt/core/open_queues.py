"""The work queues that a learner has opened in its session, and the end of their keys.

Learners open their queues in the same order, so a queue has the same number on each.
"""

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from espnet_distopt.core.driver import SharedStore


@dataclass
class Opened:
    """A queue that this learner has opened, and may have dropped since.

    Attributes:
        queue: a weak reference to it.
        items: number of its items.
        keys: its keys in the store; `counter` has the number of items begun.
        counter: one of the keys.
        version: that of the members when it was opened.
        complete: whether the learners mean to train on all items.
    """

    queue: "weakref.ReferenceType[object]"
    items: int
    keys: Sequence[str]
    counter: str
    version: int
    complete: bool = True

    def delete(self, store: SharedStore, version: int) -> None:
        """Delete the keys; warn if nobody has begun some of the items.

        Args:
            store: has the keys.
            version: that of the members. If it is not that of the beginning, a death
                explains why nobody has.
        """
        if self.complete and self.version == version:
            started = store.add(self.counter, 0)
            if started != self.items:
                logging.getLogger(__name__).warning(
                    f"a work queue of {self.items} items was left after {started}: a "
                    "learner has broken out of `read`, and nobody has trained on the "
                    "rest in its place"
                )
        for key in self.keys:
            store.delete_key(key)


class OpenQueues:
    """The queues of one learner in one session.

    Attributes:
        opened: the number of queues that it has opened.
        reading: the number of the queue that it is reading; None if it reads none. Of
            several that are read at the same time, the one that was begun first.
        joined: the number of the queue that others were reading when this learner
            joined; None if there is none.
        used: number -> a queue whose keys may be in the store.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.reading: int | None = None
        self.joined: int | None = None
        self.used: dict[int, Opened] = {}

    def to_join(self) -> int:
        """Return the number of the first queue that a replacement opens."""
        return self.opened if self.reading is None else self.reading

    def announce(self, store: SharedStore, rank: int) -> None:
        """Note which queues this learner uses. All do so before they meet."""
        used = [str(n) for n, each in self.used.items() if each.queue() is not None]
        store.set(_used(rank), ",".join(used))

    def sweep(
        self, store: SharedStore, rank: int, living: Sequence[int], version: int
    ) -> None:
        """Let the first learner delete the keys of queues that nobody uses any more.

        Args:
            store: the store of all learners.
            rank: this learner.
            living: the learners that have met, each of which has said what it uses.
            version: that of the members who have met.
        """
        texts = store.multi_get([_used(each) for each in living])
        used = {int(n) for text in texts for n in bytes(text).decode().split(",")}
        for number in self.used.keys() - used:
            dropped = self.used.pop(number)
            if rank == living[0]:
                dropped.delete(store, version)


def _used(rank: int) -> str:
    return f"work/used/{rank}"


_of_drivers: WeakKeyDictionary[Any, OpenQueues] = WeakKeyDictionary()


def position(driver: Any) -> OpenQueues:
    """Return the queues of the learner that `driver` serves."""
    return _of_drivers.setdefault(driver, OpenQueues())
