"""An epoch's items, dealt out while learners train: nobody waits for a slow one.

Learners that do not step together begin with equal shares, those that a static division
gives them. Who is through takes from what the others have not begun, so an epoch ends
for all within about one item of the slowest, and each item is trained on exactly once.
(Work stealing; Blumofe and Leiserson 1999, section 3, with a share for a deque.)
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.drivers.liveness import Store
from espnet_distopt.effects import Broadcast, Program
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session

T = TypeVar("T")

_BACK = 1 << 32
"""What an item taken at the back of a share counts in its counter; at the front: 1."""

_serial = itertools.count()
"""Numbers the queues of a process, in the same order on all learners."""


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
        items: of the epoch.
    """

    def __init__(self, store: Store, group: int, groups: int, items: int) -> None:
        self._store = store
        self._group = group
        self._shares = [range(g, items, groups) for g in range(groups)]
        self._keys = [f"share/{g}" for g in range(groups)]

    def begin(self, taken: Sequence[int]) -> Sequence[int]:
        """Set this group's counter, before anybody takes; return what it may take.

        Args:
            taken: what `taken` has returned in an earlier run, or zeros.
        """
        own = taken[self._group]
        self._store.set(self._keys[self._group], str(own))
        front, _ = _ends(own)
        return self._shares[self._group][front:]

    def taken(self) -> list[int]:
        """Return all counters. Cost: one operation, of G numbers."""
        return [int(count) for count in self._store.multi_get(self._keys)]

    def take(self) -> bool:
        """Take the next item of this group's share, unless others have. Cost: one."""
        front, back = _ends(self._store.add(self._keys[self._group], 1))
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
            count = self._store.add(self._keys[victim], number * _BACK)
            share = self._shares[victim]
            front, back = _ends(count)
            got = share[max(front, 1, len(share) - back) : len(share) - back + number]
            if got:
                return got


def _ends(count: int) -> tuple[int, int]:
    """Return how many items a counter says have been taken at the front and back."""
    return count % _BACK, count // _BACK


def _left(count: int, size: int) -> int:
    """Return how many of `size` items are left to others."""
    front, back = _ends(count)
    return max(0, size - back - max(front, 1))


class WorkQueue:
    """The items of one epoch, for the learners of a session.

    All learners construct it, at the beginning of an epoch, and read it to the end.
    Learners that step together (a node of `hadpsgd`; all, of a synchronous algorithm)
    get the same items: each trains on its own part of them.

    Cost a step: two operations of the rendezvous store; where learners step together,
    by the first of them, and a broadcast of 16 bytes. `benchmarks/work_queue.py`.

    Example (alone, or in each process after `torch.distributed.init_process_group`):
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.ones(8, 3))
        >>> batches = [[0, 1, 2], [3, 4, 5], [6, 7]]  # the same on every learner
        >>> def load(items):
        ...     return DataLoader(data, batch_sampler=[batches[i] for i in items])
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> with Session(model, optimizer, "adpsgd") as session:
        ...     for (x,) in WorkQueue(session, len(batches)).read(load):
        ...         optimizer.zero_grad()
        ...         model(x).sum().backward()
        ...         optimizer.step()
        ...         session.step()
        ...     with session.consensus():
        ...         _ = model(torch.ones(1, 3))

    Args:
        session: of this learner.
        items: of the epoch, the same number on every learner.
        ahead: items that are taken from others at a time, so that a loader can read
            ahead; 1 if yours does not.
        state: what `state_dict` returned in a run that ended within this epoch.

    Attributes:
        groups: of learners that step together.
        steps: of the epoch, if each group makes as many as any other (rounded up).
        started: items that all learners together have begun to train on, as far as
            this one knows: it asks with each of its own.

    Raises:
        InputError: `state` is of other numbers of items or groups.
        PeerLostError: another learner has died; the message names it.
    """

    def __init__(
        self,
        session: Session,
        items: int,
        ahead: int = 1,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._driver = session.driver
        self._ranks = session.algorithm.lockstep(session.learner)
        self._leads = session.learner.rank == self._ranks[0]
        self.groups = session.learner.size // len(self._ranks)
        group = self._ranks[0] // len(self._ranks)
        self._items, self._ahead = items, ahead
        self.steps = -(-items // self.groups)
        taken = state["taken"] if state else [0] * self.groups
        if state and (len(taken), state["items"]) != (self.groups, items):
            raise InputError(
                f"the saved work queue is of {state['items']} items for {len(taken)} "
                f"groups of learners, not of {items} for {self.groups}"
            )
        self.started: int = state["started"] if state else 0
        self._held: list[int] = list(state["held"]) if state else []
        watch = self._driver.watch
        # Two names suffice: all have left the queue before the last one when they meet.
        name = f"work/{next(_serial) % 2}"
        self._store = PrefixStore(name, watch.store) if watch else HashStore()
        self._shares = Shares(self._store, group, self.groups, items)
        self._own = self._shares.begin(taken)
        if self._leads and group == 0:
            self._store.set("started", str(self.started))
        self._driver.meet()

    @property
    def step(self) -> int:
        """How many steps each would have made, had all made equally many.

        That is where a learning-rate schedule should be (rounded up: 1 from the first
        item on).
        """
        return -(-self.started // self.groups)

    def read(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield what is to be trained on, one item after the other.

        Args:
            load: returns what yields the given items (numbers from 0) in their order,
                and may read ahead. It is called again for those taken from others; the
                last one's iterator is not used any more then.
        """
        yield from self._hold(load)
        for loaded in load(self._own) if self._own else ():
            if not self._take():
                break
            yield loaded
        while self._steal():
            yield from self._hold(load)

    def _hold(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield what was taken from others."""
        items = tuple(self._held)
        for _, loaded in zip(items, load(items) if items else (), strict=True):
            self._held.pop(0)
            self._take(own=False)
            yield loaded

    def _take(self, own: bool = True) -> bool:
        """Begin with an item, if it is from the `own` share and not taken by others."""
        got = True
        if self._leads:
            with self._asking():
                if own:
                    got = self._shares.take()
                self.started = self._store.add("started", int(got))
        told, self.started = self._from_leader([int(got), self.started])
        return told > 0

    def _steal(self) -> bool:
        """Take from what others have left, if they have."""
        items: Sequence[int] = ()
        if self._leads:
            with self._asking():
                items = self._shares.steal(self._ahead)
        missing = [-1] * (self._ahead - len(items))
        items = self._from_leader([*items, *missing])
        self._held = [item for item in items if item >= 0]
        return bool(self._held)

    def _from_leader(self, numbers: list[int]) -> list[int]:
        """Return the numbers of the learner that takes for those who step with it."""
        if len(self._ranks) == 1:
            return numbers
        told = torch.tensor(numbers)
        self._driver.run(_broadcast(told, self._ranks))
        return told.tolist()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Inside, the store is asked: it takes time, and the store may be gone."""
        start = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            assert self._driver.watch is not None
            what = "taking a batch from the work queue"
            raise self._driver.watch.explain(error, what) from error
        finally:
            self._driver.spent["comm_time"] += time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Return what is left to do, when all learners have stopped to take items."""
        return {
            "items": self._items,
            "taken": self._shares.taken(),
            "started": self._store.add("started", 0),
            "held": list(self._held),
        }


def _broadcast(tensor: torch.Tensor, ranks: tuple[int, ...]) -> Program:
    yield Broadcast(tensor, ranks)
