"""A work queue deals out the items of an epoch while learners train on them.

An item is what one step trains on, usually a batch. At first each learner has a share
of the items, as equal as a static division makes them. A learner that has finished its
share takes items that others have not begun, so that no learner waits for a slow one.
An epoch ends for all learners within about one item of the slowest, and each item is
trained on exactly once. This is work stealing (Blumofe and Leiserson 1999, section 3),
with a share in the place of a deque.

An epoch of six items and two learners, Anna, who is fast, and Ben, who is slow:

    1. Anna's share is items 0, 2 and 4; Ben's is 1, 3 and 5. Both give their share to
       their loaders, which read ahead. The first item of a share is taken already.
    2. Anna trains on 0, 2 and 4, Ben on 1. Before a learner trains on another item of
       its own share, it counts the item as taken in the rendezvous store.
    3. Anna's share is empty. She takes item 5, the last one of Ben's share, and calls
       for a loader that reads it.
    4. Ben counts item 3 as taken and trains on it. His loader has read 5 already, but
       when he counts it, the store says that it is not his any more. He drops it.
    5. Anna and Ben both find nothing left in any share, and end their epochs.

What could go wrong, and why it does not:

    If Anna and Ben took item 5 at the same time, it might be trained on twice. To take
    an item is one atomic change of the record of Ben's share, which fails if another
    one was faster: see `distributed.shares`.

    If Anna died in step 3, nobody might train on item 5. But the change that takes it
    also says that she holds it. When Ben finds nothing left, he claims it.

    If the run is saved in step 3, item 5 has been taken but not begun. `state_dict`
    names it, and Anna trains on it first when the run is resumed. If she had died, the
    learner that has her place then does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from espnet_distopt.core.driver import Driver
from espnet_distopt.distributed.queue_group import WHAT, QueueGroup
from espnet_distopt.distributed.queue_keys import QueueKeys, position
from espnet_distopt.distributed.queue_left import Left
from espnet_distopt.distributed.queue_terms import QueueTerms
from espnet_distopt.distributed.shares import MOST_ITEMS
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session

T = TypeVar("T")

_keys: WeakKeyDictionary[Driver, QueueKeys] = WeakKeyDictionary()
"""For each driver whose session has queues: the keys of these queues."""


class WorkQueue:
    """The items of one epoch, for the learners of a session.

    All learners construct the queue at the beginning of an epoch and read it to its
    end. A group of learners that step together (a node of `hadpsgd`; all learners of a
    synchronous algorithm) gets the same items, and each learner trains on its own part
    of them. Several queues may be open at once, if all learners construct them in the
    same order.

    A learner may break out of `read` early. The others then take the rest of its share,
    but neither its first item nor those that it has taken `ahead` from others. It may
    read on later, and then gets what it has not begun. If nobody trains on the rest,
    the log says so, unless `state_dict` has saved it.

    If a learner dies, the others take what its group had not begun. The item that it
    was training on counts as done; with the session's `repeat_begun`, another learner
    trains on it. What it had trained on before is not trained on again. A learner that
    joins in its place goes on with what is left: its first queue is the one that the
    others are reading, and its constructor does not wait for anybody. A death that
    becomes known when all others have found nothing left comes too late for all this.

    Cost: a step takes two operations of the rendezvous store, and one more each time
    that others have taken of the same share meanwhile. In a group of several learners
    the first one makes them, and broadcasts 16 bytes. The constructor takes a barrier
    and about eight operations. `benchmarks/work_queue.py` measures both.

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
        session: this learner's session.
        items: number of items of the epoch, the same on every learner; at most 2**30.
        ahead: number of items that are taken from others at a time, so that a loader
            can read ahead; 1 for a loader that does not. It is the same on learners
            that step together.
        state: what `state_dict` has returned in a run that was stopped within this
            epoch, on this learner; if it had died, on any other one. None means that
            the epoch begins.

    Attributes:
        groups: number of groups of learners that step together.
        items: number of items of the epoch.
        steps: steps of the epoch, if each group makes as many as any other, rounded up.
        started: number of items that all learners together have begun to train on, as
            this learner last heard from the store: with each item that it begins.

    Raises:
        InputError: `items` or `ahead` is impossible, `state` is of another number of
            items or groups, or the learners differ in what must be the same. All
            learners raise it.
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
        rank, size = session.learner.rank, session.learner.size
        ranks = session.algorithm.lockstep(session.learner)
        self.groups = size // len(ranks)
        self.items, self._ahead = items, min(ahead, max(1, items))
        self.steps = -(-items // self.groups)
        _check_saved(state, items, self.groups)
        store = self._driver.store
        self._position = position(self._driver)
        new = QueueKeys(store, rank, size, self._position)
        self._keys = _keys.setdefault(self._driver, new)
        self._number = self._position.opened
        self._prefix = self._keys.prefix()
        self._group = QueueGroup(
            self._driver,
            rank,
            ranks,
            self.groups,
            items,
            self._prefix,
            ahead=self._ahead,
            repeats=session.repeat_begun,
        )
        self._terms = QueueTerms(store, rank, self.groups, self._prefix)
        if self._number == self._position.joined:
            with self._driver.asking(WHAT):
                self._join()
            return
        left = Left.everything(self.groups)
        if state:
            left = Left.saved(state, self._group.number)
        with self._driver.asking(WHAT):
            self._open(left)
        met = session.barrier()
        with self._driver.asking(WHAT):
            self._group.adopt(met.ranks, left)
            self._keys.sweep(met.ranks, met.version)
            self._refuse_differences()

    def _open(self, left: Left) -> None:
        """Write this group's record; compare what must be equal on all learners."""
        self._keys.leave()
        self._group.open(left)
        state = f"{left.started} {left.taken}"
        self._terms.note(self.items, state, self._ahead, self._group.number)
        self._register(self._driver.members.version)

    def _join(self) -> None:
        """Go on where a learner has died in whose place this one has joined."""
        self._terms.check(self.items, self._ahead, self._group.number)
        self._group.join()
        self._register(-1)

    def _register(self, version: int) -> None:
        """Remember the queue; if the members then had another version, one has died."""
        names = [*self._group.keys, *self._terms.keys]
        self._keys.register(self._prefix, self, self.items, names, version)

    def _refuse_differences(self) -> None:
        """Raise InputError if any learner has noted a difference."""
        if message := self._terms.differences():
            self._keys.stop(self._prefix)
            raise InputError(message)

    @property
    def started(self) -> int:
        """The number of items that all learners have begun, as last heard."""
        return self._group.started

    @property
    def step(self) -> int:
        """The steps of each group, if all groups had made equally many, rounded up.

        A learning-rate schedule should be at this step. It is 1 from the first item on.
        """
        return -(-self.started // self.groups)

    def count_started(self) -> int:
        """Ask the store how many items all learners together have begun."""
        with self._driver.asking(WHAT):
            return self._group.count_started()

    def read(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield the loaded items that this learner is to train on, one at a time.

        Args:
            load: takes item numbers (from 0) and returns an iterable of the loaded
                items, in the same order, which may read ahead. It is called again for
                items taken from others; the iterable before is then no longer used.
        """
        place, outer = self._position, self._position.reading
        if outer is None:
            place.reading = self._number
        try:
            yield from self._read(load)
        finally:
            place.reading = outer

    def _read(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        yield from self._read_own(load)
        while self._group.steal():
            yield from self._read_own(load)

    def _read_own(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield the items that this group has, loaded: those it holds, then its share.

        One loader reads both, because it may be slow to start.
        """
        items = (*self._group.held, *self._group.own)
        loaded = iter(load(items) if items else ())
        for count, item in enumerate(items):
            each = next(loaded, _NOTHING)
            if each is _NOTHING:
                raise _wrong_number(f"{count} of {len(items)}")
            if not self._group.begin(item):
                return
            yield each
        if next(loaded, _NOTHING) is not _NOTHING:
            raise _wrong_number(f"more than {len(items)}")

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch, once no learner takes items any more.

        That is also what learners had taken that have died.
        """
        self._keys.stop(self._prefix)
        return {"items": self.items, **self._group.state_dict()}


_NOTHING: Any = object()


def _wrong_number(found: str) -> InputError:
    return InputError(
        f"WorkQueue.read: load(items) has yielded {found} loaded items: it must yield "
        "one for each number, in their order"
    )


def _check(items: int, ahead: int) -> None:
    """Raise InputError for numbers that no queue can have."""
    if not 0 <= items <= MOST_ITEMS:
        raise InputError(f"a work queue has 0 to {MOST_ITEMS} items, not {items}")
    if ahead < 1:
        raise InputError(f"a work queue's ahead must be >= 1, not {ahead}")


def _check_saved(state: dict[str, Any] | None, items: int, groups: int) -> None:
    """Raise InputError for a save of another queue."""
    if state and (state["items"], len(state["taken"])) != (items, groups):
        raise InputError(
            f"the saved work queue is of {state['items']} items for "
            f"{len(state['taken'])} groups of learners, not of {items} for {groups}"
        )
