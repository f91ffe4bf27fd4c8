"""The keys of work queues in the rendezvous store.

Each queue has keys of its own. When no learner uses a queue any more, its keys are
deleted, so that a long training does not fill the store.
"""

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from espnet_distopt.distributed.liveness import Store


@dataclass
class Position:
    """Where a learner is in the queues of its session.

    Attributes:
        opened: the number of queues that it has opened.
        reading: the number of the queue that it is reading; None if it reads none. Of
            several that are read at the same time, the one that was begun first.
        joined: the number of the queue that others were reading when this learner
            joined; None if there is none.
    """

    opened: int = 0
    reading: int | None = None
    joined: int | None = None

    def to_join(self) -> int:
        """Return the number of the first queue that a replacement opens."""
        return self.opened if self.reading is None else self.reading


_positions: WeakKeyDictionary[Any, Position] = WeakKeyDictionary()


def position(driver: Any) -> Position:
    """Return the position of the learner that `driver` serves."""
    return _positions.setdefault(driver, Position())


@dataclass
class _Opened:
    """A queue that this learner has opened, and may have dropped since.

    Attributes:
        queue: a weak reference to the queue.
        items: number of items of the queue.
        names: the queue's keys in the store.
        version: that of the members when it was opened.
        complete: whether the learners mean to train on all items.
    """

    queue: "weakref.ReferenceType[object]"
    items: int
    names: Sequence[str]
    version: int
    complete: bool = True


class QueueKeys:
    """Gives each queue of a session its own keys, and deletes them after its end.

    A queue has ended when no learner refers to it any more. In the constructor of the
    next queue, before its barrier, each learner notes the queues that it has dropped.
    After the barrier the first living learner deletes the keys of queues that all
    living ones have left. So the store holds the keys of the queues in use, and of the
    two before.

    Learners number their queues in the same order. Each session has its own prefix in
    the store, so that queues of two sessions have different keys.

    Args:
        store: the store of all learners of the session.
        rank: this learner's rank.
        size: number of learners, N.
        position: where the learner is in its queues; None: it has opened none.
    """

    def __init__(
        self, store: Store, rank: int, size: int, position: Position | None = None
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._position = position or Position()
        self._opened: dict[str, _Opened] = {}
        self._left: dict[str, _Opened] = {}
        self._sweeps = rank == 0

    def prefix(self) -> str:
        """Return the prefix with which all keys of the next queue begin."""
        number = self._position.opened
        self._position.opened += 1
        return f"work/{number}/"

    def register(
        self, prefix: str, queue: object, items: int, names: Sequence[str], version: int
    ) -> None:
        """Remember a queue, to delete its keys when no learner refers to it any more.

        Args:
            prefix: the prefix of its keys.
            queue: the queue.
            items: number of items of the queue.
            names: its keys.
            version: that of the members, who train on all items as long as they live.
        """
        self._opened[prefix] = _Opened(weakref.ref(queue), items, names, version)

    def stop(self, prefix: str) -> None:
        """Note that it is on purpose if the queue is not read to its end."""
        self._opened[prefix].complete = False

    def leave(self) -> None:
        """Note which queues this learner has dropped.

        Each learner calls this before the barrier.
        """
        for prefix, opened in list(self._opened.items()):
            if opened.queue() is None:
                self._store.set(_left(prefix, self._rank), "1")
                del self._opened[prefix]
                if self._sweeps:
                    self._left[prefix] = opened

    def sweep(self, living: Sequence[int], version: int) -> None:
        """Delete the keys of queues that all living learners have left.

        Each learner calls this after the barrier.

        Args:
            living: the ranks of the learners that have met at the barrier.
            version: that of the members who have met.
        """
        self._sweeps = self._rank == living[0]
        for prefix, opened in list(self._left.items()):
            if not self._store.check([_left(prefix, rank) for rank in living]):
                continue
            if opened.complete and opened.version == version:
                _warn_if_incomplete(
                    self._store.add(f"{prefix}started", 0), opened.items
                )
            left = [_left(prefix, rank) for rank in range(self._size)]
            for name in (*opened.names, f"{prefix}started", *left):
                self._store.delete_key(name)
            del self._left[prefix]


def _left(prefix: str, rank: int) -> str:
    return f"{prefix}left/{rank}"


def _warn_if_incomplete(started: int, items: int) -> None:
    """Log a warning if not all items of an epoch have been trained on."""
    if started != items:
        logging.warning(
            f"a work queue of {items} items was left after {started}: a learner has "
            "broken out of `read`, and nobody has trained on the rest in its place"
        )
