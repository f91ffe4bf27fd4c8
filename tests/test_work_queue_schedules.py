"""The work queue in virtual time: thousands of epochs of up to 256 learners.

Learners are slow, operations of the store take their time, and many are under way at
once; the code is the package's own, from `WorkQueue` down to the store.

    DISTOPT_SCHEDULES=10000 python -m pytest tests/test_work_queue_schedules.py
"""

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from espnet_distopt.core.effects import Broadcast, Program
from espnet_distopt.core.membership import Members
from espnet_distopt.core.open_queues import position
from espnet_distopt.work_queue import WorkQueue
from tests.virtual_threads import Meeting, VirtualThreads

MOST = 256
SCHEDULES = int(os.environ.get("DISTOPT_SCHEDULES", "1000"))
PARTS = 10


class SlowStore:
    """A rendezvous store in memory, whose operations take `latency()` each."""

    def __init__(self, threads: VirtualThreads, latency: Callable[[], float]) -> None:
        self.values: dict[str, bytes] = {}
        self._request = lambda: threads.sleep(latency())

    def set(self, key: str, value: str) -> None:
        self._request()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._request()
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._request()
        return [self.values[key] for key in keys]

    def add(self, key: str, number: int) -> int:
        self._request()
        count = int(self.values.get(key, b"0")) + number
        assert 0 <= count < 1 << 63
        self.values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self._request()
        if self.values.get(key, b"") == expected.encode():
            self.values[key] = value.encode()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._request()
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        self._request()
        return self.values.pop(key, None) is not None


class Driver:
    """Of a learner in a virtual thread: it knows meetings, broadcasts and the dead.

    Args:
        rank: the learner.
        store: what all share.
        all_: where all learners meet.
        node: where those of its node meet.
        threads: the clock, after which it hears of deaths and joins.
    """

    def __init__(
        self,
        rank: int,
        store: SlowStore,
        all_: Meeting,
        node: Meeting,
        threads: VirtualThreads,
    ) -> None:
        self.store = store
        self.members = Members.everybody(all_.size)
        self._rank, self._all, self._node, self._threads = rank, all_, node, threads
        self._incarnations = [0] * all_.size
        self._dead: dict[int, int] = {}
        self._news: list[tuple[float, int, int | None]] = []

    def barrier(self) -> Members:
        self._all.barrier(None)
        return self.members

    def replacement(self) -> "Driver":
        """Return that of a learner that joins the queue which the others read."""
        new = Driver(self._rank, self.store, self._all, self._node, self._threads)
        new._incarnations[self._rank] = self._incarnations[self._rank] + 1
        position(new).joined = 0
        return new

    def tell(self, rank: int, incarnation: int | None, delay: float = 0.0) -> None:
        """Let this learner hear, later, that `rank` has joined, or died if None."""
        self._news.append((self._threads.now + delay, rank, incarnation))

    def _hear(self) -> None:
        while self._news and self._news[0][0] <= self._threads.now:
            _, rank, incarnation = self._news.pop(0)
            dead = {r: number for r, number in self._dead.items() if r != rank}
            if incarnation is None:
                dead[rank] = self._incarnations[rank]
            else:
                self._incarnations[rank] = incarnation
            self._dead = dead

    @property
    def dead(self) -> dict[int, int]:
        self._hear()
        return self._dead

    def incarnation(self, rank: int) -> int:
        self._hear()
        return self._incarnations[rank]

    def asking(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def await_lease(self) -> None:
        """Its heartbeat is never late."""

    def run(self, program: Program) -> None:
        for effect in program:
            assert isinstance(effect, Broadcast)
            brought = dict(self._node.barrier((self._rank, effect.tensor.clone())))
            sizes = {tensor.numel() for tensor in brought.values()}
            assert len(sizes) == 1, f"unequal tensors in a broadcast: {sizes}"
            effect.tensor.copy_(brought[effect.ranks[0]])


class Died(Exception):
    """A learner dies."""


class Deaths:
    """The death of a group of learners, and what is to become of its item.

    Attributes:
        ranks: the group; empty if nobody dies.
        repeat: whether others train on the item that it has begun.
        delay: returns how long news of the death, the replacement, or news of it take,
            in `test_work_queue_deaths`; None: nobody joins in its place.
        begun: the item that it was training on; None if it was loading.
        known: whether the others know of the death.
        in_time: whether one of the others was training then.
        incarnation: that of the group that has died.
        replaced: whether another one has joined in its place.
    """

    def __init__(
        self,
        ranks: tuple[int, ...] = (),
        moments: int = 0,
        repeat: bool = False,
        delay: Callable[[], float] | None = None,
    ) -> None:
        self.ranks, self.repeat, self.delay = ranks, repeat, delay
        self.replaced = False
        self.incarnation = 0
        self.begun: int | None = None
        self.known = self.in_time = False
        self._left = dict.fromkeys(ranks, moments)

    def known_to(self, driver: Driver) -> bool:
        return any(driver.dead.get(r) == self.incarnation for r in self.ranks)

    def at(self, drivers: Sequence[Driver], rank: int, item: int | None) -> None:
        """Die after so many moments: each time one loads items or begins with one."""
        if rank not in self.ranks:
            return
        self._left[rank] -= 1
        if self._left[rank] < 0:
            self.begun, self.known = item, True
            for driver in drivers:
                for each in self.ranks:
                    driver.tell(each, None)
            raise Died


class Epochs:
    """Epochs of random learners; `run` returns what each has trained on."""

    def __init__(
        self, pool: ThreadPoolExecutor, nodes: int, per_node: int, order: random.Random
    ) -> None:
        self.threads = VirtualThreads(pool)
        self.order, self.size, self.per_node = order, nodes * per_node, per_node
        self.latency = latencies(order)
        self._reading: set[int] = set()
        self.store = SlowStore(self.threads, self.latency)
        everybody = Meeting(self.threads, self.size)
        inside = [Meeting(self.threads, per_node) for _ in range(nodes)]
        self.drivers = [
            Driver(rank, self.store, everybody, inside[rank // per_node], self.threads)
            for rank in range(self.size)
        ]
        spread = order.choice([0.0, order.random()])
        self.seconds = [
            1 + spread * order.random() + (order.random() < 0.1) * order.uniform(9, 99)
            for _ in range(nodes)
        ]

    def run(self, items: int, deaths: Deaths | None = None) -> list[list[int]]:
        deaths = deaths or Deaths()
        return self.threads.run(
            [lambda r=r: self._train(r, items, deaths) for r in range(self.size)]
        )

    def _train(self, rank: int, items: int, deaths: Deaths) -> list[int]:
        trained: list[int] = []
        self._reading.add(rank)
        with suppress(Died):
            self._read(self.drivers[rank], rank, items, deaths, trained)
        self._reading.discard(rank)
        return trained

    def _read(
        self,
        driver: Driver,
        rank: int,
        items: int,
        deaths: Deaths,
        trained: list[int],
    ) -> None:
        node = rank // self.per_node
        ranks = tuple(range(node * self.per_node, (node + 1) * self.per_node))
        session: Any = SimpleNamespace(
            driver=driver,
            barrier=driver.barrier,
            learner=SimpleNamespace(rank=rank, size=self.size),
            algorithm=SimpleNamespace(lockstep=lambda learner: ranks),
            repeat_begun=deaths.repeat,
            begin_queue=lambda queue: None,
        )
        queue = WorkQueue(session, items)

        def load(numbers: Sequence[int]) -> Sequence[int]:
            deaths.at(self.drivers, rank, None)
            return numbers

        for item in queue.read(load):
            trained.append(item)
            deaths.at(self.drivers, rank, item)
            self.threads.sleep(self.seconds[node])
            deaths.in_time |= deaths.known_to(driver) and ranks != deaths.ranks


def latencies(order: random.Random) -> Callable[[], float]:
    """Equal (so that many ask at the same moment), or of some spread; long or short."""
    mean = order.choice([0.001, 0.05, 1.0, 5.0])
    return order.choice(
        [
            lambda: mean,
            lambda: order.uniform(0, 2 * mean),
            lambda: order.expovariate(1 / mean),
            lambda: mean * (100 if order.random() < 0.01 else 1),
        ]
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MOST) as threads:
        yield threads


def exactly_once(trained: list[list[int]], per_node: int, items: int) -> None:
    for rank, own in enumerate(trained):
        assert own == trained[rank - rank % per_node]
        node = rank // per_node
        assert node >= items or own[0] == node  # Nobody takes one's first item.
    dealt = Counter(item for own in trained[::per_node] for item in own)
    assert dealt == Counter(range(items))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_item_is_dealt_once(pool: ThreadPoolExecutor, part: int) -> None:
    """Two epochs in a row of each team, of 2 to 256 learners."""
    order = random.Random(part)
    for _ in range(math.ceil(SCHEDULES / PARTS / 2)):
        # small ones more often: a large one takes as long as hundreds of them
        size = round(2 ** (1 + (math.log2(MOST) - 1) * order.random() ** 4))
        per_node = order.choice([1, 1, 1, min(size, order.choice([2, 4]))])
        nodes = size // per_node
        epochs = Epochs(pool, nodes, per_node, order)
        for _ in range(2):
            items = order.randrange(4 * nodes + 20)
            exactly_once(epochs.run(items), per_node, items)


@pytest.mark.parametrize("per_node", [1, 2])
def test_all_take_from_a_slow_one_at_the_same_moment(
    pool: ThreadPoolExecutor, per_node: int
) -> None:
    """Equal latencies: all thieves have read the records before one changes any."""
    epochs = Epochs(pool, 16, per_node, random.Random(0))
    epochs.latency = lambda: 0.01
    epochs.store._request = lambda: epochs.threads.sleep(0.01)
    epochs.seconds = [1.0] * 15 + [100.0]
    for items in (80, 48, 200):
        exactly_once(epochs.run(items), per_node, items)


def test_keys_do_not_gather_in_the_store(pool: ThreadPoolExecutor) -> None:
    epochs = Epochs(pool, 4, 1, random.Random(0))
    sizes = []
    for _ in range(8):
        epochs.run(9)
        sizes.append(len(epochs.store.values))
    assert len(set(sizes[3:])) == 1


@pytest.mark.parametrize("part", range(PARTS))
def test_what_a_dead_group_has_taken_is_done_by_others(
    pool: ThreadPoolExecutor, part: int
) -> None:
    """What it was training on is repeated if asked for; the rest is done once."""
    order = random.Random(part)
    late = 0
    schedules = math.ceil(SCHEDULES / PARTS / 2)
    for _ in range(schedules):
        nodes, per_node = order.randrange(2, 9), order.choice([1, 1, 2])
        epochs = Epochs(pool, nodes, per_node, order)
        items = order.randrange(nodes, 60)
        dying = order.randrange(nodes) * per_node
        ranks = tuple(range(dying, dying + per_node))
        deaths = Deaths(ranks, order.randrange(12), order.random() < 0.5)
        trained = epochs.run(items, deaths)
        dealt = Counter(item for own in trained[::per_node] for item in own)
        expected = Counter(range(items))
        if deaths.repeat and deaths.begun is not None:
            expected[deaths.begun] += 1
        if deaths.known and not deaths.in_time:
            late += 1
            assert dealt <= expected
        else:
            assert dealt == expected
        started = int(epochs.store.values["work/0/started"])
        assert started == len(dealt)  # a repeated one is counted anew
    assert late < schedules / 4
