"""An epoch's items, dealt out while learners train: nobody waits for a slow one.

Learners that do not step together begin with equal shares, those that a static division
gives them. Who is through takes from what the others have not begun, so an epoch ends
for all within about one item of the slowest, and each item is trained on exactly once.
(Work stealing; Blumofe and Leiserson 1999, section 3, with a share for a deque.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from espnet_distopt.core.driver import Driver
from espnet_distopt.core.effects import Broadcast, Program
from espnet_distopt.distributed.queue_keys import QueueKeys
from espnet_distopt.distributed.shares import MOST_ITEMS, Shares
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session

T = TypeVar("T")

_keys: WeakKeyDictionary[Driver, QueueKeys] = WeakKeyDictionary()
"""The queues' keys, of each session that has queues."""

WHAT = "asking the work queue's store"


_DIFFERENCES = {
    "items": "learner {} has opened a work queue of {} items, and learner {} the "
    "same one of {}: give all learners the same number",
    "ahead": "learner {} has opened a work queue with ahead = {}, and learner {}, "
    "which steps with it, with {}: give both the same",
    "state": "learner {0} has opened a work queue with another state than learner "
    "{2}: resume all from the same save, or none",
}
"""What is said of two learners and what they have said."""


class WorkQueue:
    """The items of one epoch, for the learners of a session.

    All learners construct it, at the beginning of an epoch, and read it to the end.
    Learners that step together (a node of `hadpsgd`; all, of a synchronous algorithm)
    get the same items: each trains on its own part of them. Several queues may be open
    at once; all learners construct them in the same order.

    A learner may leave early (break out of `read`): the others take what is left of its
    share, if it has begun with it, but not what it has taken `ahead` from others. It
    may read on later, and gets what it has not begun. Where nobody does, the log says
    so, unless the rest has been saved by `state_dict`.

    Cost a step: two operations of the rendezvous store; where learners step together,
    by the first of them, and a broadcast of 16 bytes. `benchmarks/work_queue.py`. To
    construct it: a meeting, and about eight operations.

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
        items: of the epoch, the same number on every learner; at most 2**30.
        ahead: items that are taken from others at a time, so that a loader can read
            ahead; 1 if yours does not. The same on learners that step together.
        state: what `state_dict` returned in a run that ended within this epoch.

    Attributes:
        groups: of learners that step together.
        steps: of the epoch, if each group makes as many as any other (rounded up).
        started: items that all learners together have begun to train on, as far as
            this one knows: it asks with each of its own.

    Raises:
        InputError: impossible `items` or `ahead`; `state` is of other numbers of items
            or groups; or the learners differ in what must be the same. All raise it.
        PeerLostError: another learner has died; the message names it.
    """

    def __init__(
        self,
        session: Session,
        items: int,
        ahead: int = 1,
        state: dict[str, Any] | None = None,
    ) -> None:
        _check(items, ahead)
        self._driver = session.driver
        self._rank, size = session.learner.rank, session.learner.size
        self._ranks = session.algorithm.lockstep(session.learner)
        self._leads = self._rank == self._ranks[0]
        self.groups = size // len(self._ranks)
        self._items, self._ahead = items, min(ahead, max(1, items))
        self.steps = -(-items // self.groups)
        taken = state["taken"] if state else [0] * self.groups
        if state and (len(taken), state["items"]) != (self.groups, items):
            raise InputError(
                f"the saved work queue is of {state['items']} items for {len(taken)} "
                f"groups of learners, not of {items} for {self.groups}"
            )
        self.started: int = state["started"] if state else 0
        self._held: list[int] = list(state["held"]) if state else []
        self._store = self._driver.store
        new = QueueKeys(self._store, self._rank, size)
        self._keys = _keys.setdefault(self._driver, new)
        self._prefix = self._keys.prefix()
        with self._driver.asking(WHAT):
            self._open(taken)
        session.barrier()
        with self._driver.asking(WHAT):
            self._keys.sweep()
            self._refuse_differences()

    def _open(self, taken: list[int]) -> None:
        """Set this group's counters, and say what must be the same elsewhere."""
        self._keys.leave()
        group = self._ranks[0] // len(self._ranks)
        self._shares = Shares(
            self._store, group, self.groups, self._items, self._prefix
        )
        self._own = self._shares.begin(taken)
        if self._leads and group == 0:
            self._store.set(self._prefix + "started", str(self.started))
        self._compare("items", self._items)
        self._compare("state", f"{self.started} {taken}")
        self._compare(f"ahead/{group}", self._ahead)
        ahead = [f"{self._prefix}ahead/{g}" for g in range(self.groups)]
        others = [self._prefix + name for name in ("items", "state", "differs")]
        names = [*self._shares.keys, *ahead, *others]
        self._keys.register(self._prefix, self, self._items, names)

    def _compare(self, name: str, value: object) -> None:
        """Tell all learners if another one has said another `value` first."""
        own, key = f"{self._rank}:{value}", self._prefix + name
        first, _, said = self._store.compare_set(key, "", own).decode().partition(":")
        if said != str(value):
            what, _, _ = name.partition("/")
            message = _DIFFERENCES[what].format(self._rank, value, first, said)
            self._store.compare_set(self._prefix + "differs", "", message)

    def _refuse_differences(self) -> None:
        """Raise what a learner has found to differ."""
        key = self._prefix + "differs"
        if self._store.check([key]):
            self._keys.stop(self._prefix)
            raise InputError(self._store.get(key).decode())

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
                self._own = self._own[:0]  # others have taken the rest
                break
            self._own = self._own[1:]
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
            with self._driver.asking(WHAT):
                if own:
                    got = self._shares.take()
                self.started = self._store.add(self._prefix + "started", int(got))
        told, self.started = self._from_leader([int(got), self.started])
        return told > 0

    def _steal(self) -> bool:
        """Take from what others have left, if they have."""
        items: Sequence[int] = ()
        if self._leads:
            with self._driver.asking(WHAT):
                items = self._shares.steal(self._ahead)
        # one longer would not fit into what the others of the node wait for
        assert len(items) <= self._ahead, (items, self._ahead)
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

    def state_dict(self) -> dict[str, Any]:
        """Return what is left to do, when all learners have stopped to take items."""
        self._keys.stop(self._prefix)
        return {
            "items": self._items,
            "taken": self._shares.taken(),
            "started": self._store.add(self._prefix + "started", 0),
            "held": list(self._held),
        }


def _check(items: int, ahead: int) -> None:
    """Refuse what no queue can have."""
    if not 0 <= items <= MOST_ITEMS:
        raise InputError(f"a work queue has 0 to {MOST_ITEMS} items, not {items}")
    if ahead < 1:
        raise InputError(f"a work queue's ahead must be >= 1, not {ahead}")


def _broadcast(tensor: torch.Tensor, ranks: tuple[int, ...]) -> Program:
    yield Broadcast(tensor, ranks)
