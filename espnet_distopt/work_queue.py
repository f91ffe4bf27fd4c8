"""A work queue deals out the items of an epoch while learners train on them.

An item is what one step trains on, usually a batch. At first each learner holds a share
of the items, as equal as a static division makes them. A learner that has finished its
share takes items that others have not begun, so that no learner waits for a slow one.
An epoch ends for all learners within about one item of the slowest, and each item is
trained on exactly once. This is work stealing (Blumofe and Leiserson 1999, section 3),
with a share in the place of a deque.

`core.queue_records` says how items are taken, and why none is lost or trained on twice
if learners take them at the same moment, or die.
"""

import logging
import operator
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar
from weakref import ref

import torch

from espnet_distopt.core.effects import Broadcast, Program
from espnet_distopt.core.open_queues import Opened, position
from espnet_distopt.core.queue_records import (
    Holder,
    Records,
    Runs,
    count,
    from_lists,
    to_lists,
)
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session

T = TypeVar("T")

MOST_ITEMS = 1 << 30
"""The most items of a queue."""

WHAT = "asking the work queue's store"
"""The words in which errors of the store say what was under way."""


class WorkQueue:
    """The items of one epoch, for the learners of a session.

    All learners construct the queue at the beginning of an epoch and read it to its
    end. A group of learners that step together (a node of `hadpsgd`; all learners of a
    synchronous algorithm) gets the same items, and each learner trains on its `own`
    part of them. Several queues may be open at once, if all learners construct them in
    the same order.

    A learner may break out of `read` early. The others then take the rest of what it
    holds, but not its first item, if it has not begun with that. It may read on later,
    and then gets what they have left it. If nobody trains on the rest, the log says so,
    unless `state_dict` has saved it.

    If a learner dies, the others take what its group had not begun. The item that it
    was training on counts as done; with the session's `repeat_begun`, another learner
    trains on it. What it had trained on before is not trained on again. The first queue
    of a learner that joins in its place is the one that the others are reading; it
    takes from what is left, and its constructor does not wait for anybody. A death that
    becomes known when all others have found nothing left comes too late for all this.

    Cost: a step takes two operations of the rendezvous store, and one more if others
    have taken some of this learner's items since its last step. In a group of several
    learners the first one makes them, and broadcasts 16 bytes. The constructor takes a
    barrier and about six operations.

    Example (alone, or in each process after `torch.distributed.init_process_group`):
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.ones(8, 3))
        >>> batches = [[0, 1, 2], [3, 4, 5], [6, 7]]  # the same on every learner
        >>> def load(items):
        ...     own = [batches[i][queue.own] for i in items]
        ...     return DataLoader(data, batch_sampler=own)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> with Session(model, optimizer, "adpsgd") as session:
        ...     queue = WorkQueue(session, len(batches))
        ...     for (x,) in queue.read(load):
        ...         optimizer.zero_grad()
        ...         model(x).sum().backward()
        ...         optimizer.step()
        ...         session.step()
        ...     with session.consensus():
        ...         _ = model(torch.ones(1, 3))

    Args:
        session: this learner's session.
        items: number of items of the epoch, the same on every learner; at most 2**30.
        state: what `state_dict` has returned on any learner in a run that was stopped
            within this epoch. None: the epoch begins, if `Session.resume` does not know
            better.

    Attributes:
        own: this learner's part of an item that is a list of samples: every n-th one
            where n learners step together, and all of them where each steps by itself.
        groups: number of groups of learners that step together.
        items: number of items of the epoch.
        steps: steps of the epoch, if each group makes as many as any other, rounded up.
        started: number of items that all learners together have begun to train on, as
            this learner last heard from the store: with each item that it begins.

    Raises:
        InputError: `items` is impossible, `state` is of another number of items or
            groups, or the learners differ in one of them. All learners raise it.
        PeerLostError: another learner has died; the message names it.
    """

    def __init__(
        self, session: Session, items: int, state: dict[str, Any] | None = None
    ) -> None:
        try:
            possible = 0 <= operator.index(items) <= MOST_ITEMS
        except TypeError:  # such as the batches themselves
            possible = False
        if not possible:
            raise InputError(
                f"a work queue is given the number of its items (0 to {MOST_ITEMS}), "
                f"such as len(batches), not {reprlib.repr(items)}"
            )
        self._driver, self._rank = session.driver, session.learner.rank
        self._ranks = session.algorithm.lockstep(session.learner)
        self.own = slice(self._ranks.index(self._rank), None, len(self._ranks))
        self.groups = session.learner.size // len(self._ranks)
        self.items, self.steps = items, -(-items // self.groups)
        left = _left(state or session.begin_queue(self), items, self.groups)
        self._queues = position(self._driver)
        self._number = self._queues.opened
        self._queues.opened += 1
        self._prefix = f"work/{self._number}/"
        first = self._ranks[0]
        self._leads = self._rank == first
        self._records = Records(
            self._driver.store,
            Holder(first // len(self._ranks), self._driver.incarnation(first)),
            self.groups,
            self._prefix,
            session.repeat_begun,
        )
        self._started = 0
        self._waiting: deque[int] = deque()
        if self._number == self._queues.joined:
            self._join()
        else:
            self._open(session, left)

    def _open(self, session: Session, left: Sequence[Runs]) -> None:
        """Open the queue with all learners, at the beginning of an epoch."""
        group = self._ranks[0] // len(self._ranks)
        self._waiting.extend(chain(*left[group]))
        self._started = self.items - sum(map(count, left))
        with self._driver.asking(WHAT):
            self._remember(self._driver.members.version)
            if self._leads:
                self._records.open(left[group], self._started)
            if difference := self._difference(str([*map(to_lists, left)])):
                self._driver.store.set(self._prefix + "differs", difference)
            self._queues.announce(self._driver.store, self._rank)
        met = session.barrier()
        with self._driver.asking(WHAT):
            for absent, first in enumerate(self._firsts()):
                if self._leads and first not in met.ranks:
                    self._records.adopt(absent, left[absent])
            self._queues.sweep(self._driver.store, self._rank, met.ranks, met.version)
            if self._driver.store.check([self._prefix + "differs"]):
                self._queues.used[self._number].complete = False
                difference = self._driver.store.get(self._prefix + "differs").decode()
                raise InputError(difference)

    def _join(self) -> None:
        """Open the queue that others are reading, with nothing to do of its own."""
        with self._driver.asking(WHAT):
            if difference := self._difference():
                raise InputError(difference)
            self._remember(version=-1)  # A death may explain why items are left.
        self.count_started()

    def _remember(self, version: int) -> None:
        keys = [*self._records.keys, self._prefix + "terms", self._prefix + "differs"]
        self._queues.used[self._number] = Opened(
            ref(self), self.items, keys, self._records.counter, version
        )

    def _difference(self, state: str | None = None) -> str:
        """Return how the first learner's queue differs from this one; "" if it doesn't.

        Args:
            state: what is left of the queue; None if that does not matter.
        """
        own = f"{self._rank}|{self.items}|{state}"
        terms = self._driver.store.compare_set(self._prefix + "terms", "", own)
        first, items, other = bytes(terms).decode().split("|")
        if items != str(self.items):
            return (
                f"learner {self._rank} has opened a work queue of {self.items} items, "
                f"and learner {first} the same one of {items}: give all learners the "
                "same number"
            )
        if state not in (None, other):
            return (
                f"learner {self._rank} has opened a work queue with another state than "
                f"learner {first}: resume all from the same save, or none"
            )
        return ""

    def _firsts(self) -> range:
        """Return the first learner of each group."""
        return range(0, self.groups * len(self._ranks), len(self._ranks))

    @property
    def started(self) -> int:
        """The number of items that all learners have begun, as last heard."""
        return self._started

    @property
    def step(self) -> int:
        """The steps of each group, if all groups had made equally many, rounded up.

        A learning-rate schedule should be at this step. It is 1 from the first item on.
        """
        return -(-self._started // self.groups)

    def count_started(self) -> int:
        """Ask the store how many items all learners together have begun.

        Unlike `started`, this is exact if a learner has died between the two operations
        by which it begins with an item.
        """
        with self._driver.asking(WHAT):
            self._started = self.items - self._records.read()
        return self._started

    def read(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield the loaded items that this learner is to train on, one at a time.

        Args:
            load: takes item numbers (from 0) and returns an iterable of the loaded
                items, in the same order, which may read ahead. It is called again for
                items taken from others; the iterable before is then no longer used.
        """
        queues, outer = self._queues, self._queues.reading
        if outer is None:
            queues.reading = self._number
        try:
            yield from self._read_held(load)
            while self._take():
                yield from self._read_held(load)
        finally:
            queues.reading = outer

    def _read_held(self, load: Callable[[Sequence[int]], Iterable[T]]) -> Iterator[T]:
        """Yield the items that this group holds, loaded, until others have the rest."""
        items = tuple(self._waiting)
        loaded = iter(load(items) if items else ())
        for number, item in enumerate(items):
            each = next(loaded, _NOTHING)
            if each is _NOTHING:
                raise _wrong_number(f"{number} of {len(items)}")
            if not self._begin(item):
                return
            yield each
        if next(loaded, _NOTHING) is not _NOTHING:
            raise _wrong_number(f"more than {len(items)}")

    def _begin(self, item: int) -> bool:
        """Begin with the next item; return False if others have taken the rest."""
        got = False
        if self._leads:
            with self._driver.asking(WHAT):
                self._driver.await_lease()
                got = self._records.begin(item)
        told, started = self._tell(int(got), self._records.started)
        if told:
            self._waiting.popleft()
            self._started = started
        else:
            self._waiting.clear()
        return bool(told)

    def _take(self) -> bool:
        """Take items that others have not begun; return whether there were any."""
        run = range(0)
        if self._leads:
            with self._driver.asking(WHAT):
                self._driver.await_lease()
                run, again = self._records.take(self._dead())
            if again:
                logging.getLogger(__name__).warning(
                    f"learner {self._rank} trains again on item {run[0]} of the work "
                    "queue, with which a learner that has died had begun"
                )
        run = range(*self._tell(run.start, run.stop, run.step))
        self._waiting.extend(run)
        return bool(run)

    def _dead(self) -> dict[int, int]:
        """Return group -> the greatest incarnation of its first learner that has died.

        Of a group that lives, those before the present one have died.
        """
        dead = self._driver.dead
        return {
            group: dead.get(first, self._driver.incarnation(first) - 1)
            for group, first in enumerate(self._firsts())
        }

    def _tell(self, *numbers: int) -> list[int]:
        """Return the numbers of the group's first learner, which asks the store."""
        if len(self._ranks) == 1:
            return list(numbers)
        told = torch.tensor(numbers)
        self._driver.run(_broadcast(told, self._ranks))
        return told.tolist()

    def put_back(self, items: Sequence[int]) -> None:
        """Say that this learner has read items and will not train on them.

        The learners of a group all say the same.

        Args:
            items: those that `read` has yielded last, in their order.
        """
        self._waiting.extendleft(reversed(items))
        if self._leads:
            with self._driver.asking(WHAT):
                self._driver.await_lease()
                self._records.put_back(items)

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch, once no learner takes items any more.

        That is also what learners hold that have died. It is the same on all learners.
        """
        self._queues.used[self._number].complete = False
        self.count_started()
        left = self._records.left(self._dead())
        return {"items": self.items, "left": [*map(to_lists, left)]}


_NOTHING: Any = object()


def _wrong_number(found: str) -> InputError:
    return InputError(
        f"WorkQueue.read: load(items) has yielded {found} loaded items: it must yield "
        "one for each number, in their order"
    )


def _left(state: dict[str, Any] | None, items: int, groups: int) -> list[Runs]:
    """Return what each group is to do: what a save says, or its share of everything.

    Raises:
        InputError: the save is of another queue.
    """
    if state is None:
        shares = (range(group, items, groups) for group in range(groups))
        return [(share,) if share else () for share in shares]
    saved = state["items"], len(state["left"])
    if saved != (items, groups):
        raise InputError(
            f"the saved work queue is of {saved[0]} items for {saved[1]} groups of "
            f"learners, not of {items} for {groups}"
        )
    return [from_lists(runs) for runs in state["left"]]


def _broadcast(tensor: torch.Tensor, ranks: tuple[int, ...]) -> Program:
    yield Broadcast(tensor, ranks)
