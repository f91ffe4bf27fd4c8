"""The keys of work queues in the rendezvous store: their own, and gone after them."""

import itertools
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.distributed.liveness import Store


@dataclass
class _Opened:
    """A queue that this learner has opened, and perhaps dropped since."""

    queue: "weakref.ReferenceType[object]"
    items: int
    names: Sequence[str]
    complete: bool = True


class QueueKeys:
    """Gives each queue of a session keys of its own; deletes them when it is over.

    A queue is over when no learner refers to it any more. Learners count themselves
    out before they meet in the next queue's constructor; learner 0 looks at the counts
    and deletes after the meeting. So the store holds the keys of the queues in use, and
    of the two before.

    Learners number their queues in the same order. Each session has a store of its own
    (a prefix), so that those of two sessions do not meet.

    Args:
        store: of all learners of the session.
        rank: this learner.
        size: number of learners.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._serial = itertools.count()
        self._opened: dict[str, _Opened] = {}
        self._left: dict[str, _Opened] = {}

    def prefix(self) -> str:
        """Return the next queue's prefix, with which all its keys begin."""
        return f"work/{next(self._serial)}/"

    def register(
        self, prefix: str, queue: object, items: int, names: Sequence[str]
    ) -> None:
        """Remember a queue, to delete the keys `names` once nobody refers to it."""
        self._opened[prefix] = _Opened(weakref.ref(queue), items, names)

    def stop(self, prefix: str) -> None:
        """Note that this queue is not going to be read to its end, on purpose."""
        self._opened[prefix].complete = False

    def leave(self) -> None:
        """Before a meeting: count this learner out of the queues it has dropped."""
        for prefix, opened in list(self._opened.items()):
            if opened.queue() is None:
                self._store.add(f"{prefix}left", 1)
                del self._opened[prefix]
                if self._rank == 0:
                    self._left[prefix] = opened

    def sweep(self) -> None:
        """After a meeting: delete the keys of queues that all have left."""
        for prefix, opened in list(self._left.items()):
            if self._store.add(f"{prefix}left", 0) < self._size:
                continue
            if opened.complete:
                _compare(self._store.add(f"{prefix}started", 0), opened.items)
            for name in (*opened.names, f"{prefix}started", f"{prefix}left"):
                self._store.delete_key(name)
            del self._left[prefix]


def _compare(started: int, items: int) -> None:
    """Warn of an epoch that has not been trained on whole."""
    if started != items:
        logging.warning(
            f"a work queue of {items} items was left after {started}: a learner has "
            "broken out of `read`, and nobody has trained on the rest in its place"
        )
