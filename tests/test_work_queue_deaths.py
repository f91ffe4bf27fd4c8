"""Learners die at any operation of the work queue's store, or are stopped there.

Nothing is lost, and nothing is trained on twice: not if the last operation was carried
out, nor if it was not, nor if the learner goes on after the others have given it up.
Time is virtual, as in `test_work_queue_schedules`.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from espnet_distopt.core.queue_records import Holder, Record, count
from tests.test_work_queue_schedules import (
    PARTS,
    SCHEDULES,
    Deaths,
    Died,
    Driver,
    Epochs,
    pool,
)

__all__ = ["pool"]

NEVER = 10**9
"""Moments of `Deaths`: the learner dies at operations instead."""


class Mortal:
    """The store of a learner, whose lives end at one of its operations each.

    Args:
        store: the store of all.
        lives: for each life the number of operations before the last one.
        end: ends a life; it is given the name of the operation and its arguments.
    """

    def __init__(
        self,
        store: Any,
        lives: Sequence[int],
        end: Callable[[str, tuple[Any, ...]], None],
    ) -> None:
        self.store, self._lives, self._end = store, list(lives), end
        self._left: int | None = None

    def live(self) -> None:
        """Count the operations from now on."""
        self._left = self._lives.pop(0) if self._lives else None

    def __getattr__(self, name: str) -> Any:
        def operation(*args: Any) -> Any:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    self._left = None
                    self._end(name, args)
            return getattr(self.store, name)(*args)

        return operation


class Lives(Epochs):
    """An epoch in which one learner dies; `dealt` and `expected` are what comes of it.

    Args:
        pool: threads.
        nodes: number of learners.
        order: decides what is random.
        lives: as for `Mortal`: of the learner that dies and of its replacements.
        applied: returns whether the last operation of a life is carried out.
        deaths: which learner it is, and whether others join in its place.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        nodes: int,
        order: random.Random,
        lives: Sequence[int],
        applied: Callable[[], bool],
        deaths: Deaths,
    ) -> None:
        super().__init__(pool, nodes, 1, order)
        [self.rank], self.deaths, self.applied = deaths.ranks, deaths, applied
        self.lost = 0
        self.twice: list[int] = []
        self._own: list[int] = []
        self._born = 0
        self._incarnation = 0
        first = self.drivers[self.rank]
        self.mortal = Mortal(self.store, lives, self._die)
        first.store = self.mortal  # type: ignore[assignment]
        met = first.barrier

        def barrier() -> Any:
            members = met()
            self.mortal.live()
            return members

        first.barrier = barrier  # type: ignore[method-assign]

    def tell(self, incarnation: int | None) -> None:
        for rank, driver in enumerate(self.drivers):
            if rank != self.rank:
                delay = self.deaths.delay() if self.deaths.delay else 0.0
                driver.tell(self.rank, incarnation, delay)

    def _die(self, name: str, args: tuple[Any, ...]) -> None:
        begun = name == "add" and args[1] == 1  # counted after it has been taken
        if self.applied():
            found = getattr(self.store, name)(*args)
            if "/share/" in args[0] and found == args[-1].encode():
                before, after = (
                    Record.parse(text.encode()).waiting for text in args[1:]
                )
                begun = after < before
        self.lost += int(begun and not self.deaths.repeat)
        self.twice += [
            hold.runs[0][0]
            for record in self.records()
            if (hold := record.of(Holder(self.rank, self._incarnation))).begun
            and self.deaths.repeat
            and self._own[self._born :][-1:] == [hold.runs[0][0]]
        ]
        self.deaths.known, self.deaths.in_time = True, False
        self.tell(None)
        raise Died

    def records(self) -> list[Record]:
        return [
            Record.parse(self.store.values[f"work/0/share/{number}"])
            for number in range(self.size)
        ]

    def _train(self, rank: int, items: int, deaths: Deaths) -> list[int]:
        if rank != self.rank:
            return super()._train(rank, items, deaths)
        driver = self.drivers[rank]
        while True:
            self._reading.add(rank)
            try:
                self._read(driver, rank, items, deaths, self._own)
                deaths.replaced = self._incarnation > 0
                break
            except Died:
                self._reading.discard(rank)
            deaths.replaced = False
            if deaths.delay is None:
                break
            self.threads.sleep(deaths.delay())
            if not self._reading:
                break
            driver = self._replacement(driver)
        self._reading.discard(rank)
        return self._own

    def _replacement(self, driver: Driver) -> Driver:
        new = driver.replacement()
        self._incarnation, self._born = new.incarnation(self.rank), len(self._own)
        self.deaths.incarnation = self._incarnation
        self.tell(self._incarnation)
        self.mortal.live()
        return new

    def check(self, items: int) -> bool:
        """Whether all is as it should be; returns False if the death came too late."""
        trained = self.run(items, self.deaths)
        dealt = Counter(item for own in trained for item in own)
        expected = Counter(range(items)) + Counter(self.twice)
        assert dealt <= expected
        in_time = self.deaths.replaced or self.deaths.in_time or not self.deaths.known
        if in_time:
            assert (expected - dealt).total() == self.lost
            assert not any(record.waiting for record in self.records())
        return in_time


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("rank", range(3))
def test_a_learner_dies_at_each_operation_of_an_epoch(
    pool: ThreadPoolExecutor, rank: int, applied: bool, repeat: bool
) -> None:
    """The fast one steals several items at a time; the others are robbed."""
    in_time = []
    for operation in range(100):
        order = random.Random(operation % 3)
        deaths = Deaths((rank,), NEVER, repeat)
        epochs = Lives(pool, 3, order, [operation], lambda: applied, deaths)
        epochs.store._request = lambda e=epochs: e.threads.sleep(e.order.random() / 9)
        epochs.seconds = [1.0, 2.0, 5.0]
        in_time.append(epochs.check(40))
        if not deaths.known:
            break
    assert not deaths.known  # it has died at all operations that there are
    assert len(in_time) > 15
    assert in_time.count(False) <= 1


@pytest.mark.parametrize("part", range(PARTS))
def test_others_and_replacements_share_what_those_leave_who_die_at_an_operation(
    pool: ThreadPoolExecutor, part: int
) -> None:
    """A replacement may die as well, while it takes over or later."""
    order = random.Random(part)
    replaced = late = 0
    schedules = math.ceil(SCHEDULES / PARTS / 2)
    for _ in range(schedules):
        nodes = order.randrange(2, 7)
        mean = order.choice([0.01, 1.0, 10.0])
        delay = order.choice([None, lambda mean=mean: order.expovariate(1 / mean)])
        lives = [order.randrange(40), order.randrange(8), order.randrange(20)]
        dying = (order.randrange(nodes),)
        deaths = Deaths(dying, NEVER, order.random() < 0.5, delay)
        epochs = Lives(pool, nodes, order, lives, lambda: order.random() < 0.5, deaths)
        in_time = epochs.check(order.randrange(nodes, 60))
        late += not in_time
        replaced += deaths.replaced
    assert late < schedules / 3
    assert replaced > schedules / 20


class Stopped(Lives):
    """The learner does not die: it goes on after the others have given it up.

    Its own heartbeat does not tell it. Another one may be started in its place.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.went_on = False
        self.robbed = False

    def _die(self, name: str, args: tuple[Any, ...]) -> None:
        self.deaths.known = True
        self.tell(None)
        before = self._held()
        self.threads.sleep(self.order.expovariate(0.05))
        self.robbed = self._held() != before

    def _held(self) -> int:
        holds = (record.of(Holder(self.rank, 0)) for record in self.records())
        return sum(count(hold.runs) for hold in holds)

    def _train(self, rank: int, items: int, deaths: Deaths) -> list[int]:
        if rank != self.rank:
            return super()._train(rank, items, deaths)
        self._read(self.drivers[rank], rank, items, deaths, self._own)
        self.went_on = True
        return self._own

    def run(self, items: int, deaths: Deaths | None = None) -> list[list[int]]:
        assert deaths is not None
        learners = [lambda r=r: self._train(r, items, deaths) for r in range(self.size)]
        return self.threads.run([*learners, lambda: self._replace(items)])

    def _replace(self, items: int) -> list[int]:
        trained: list[int] = []
        while not self.deaths.known and not self.went_on:
            self.threads.sleep(0.1)
        if self.deaths.known and self.deaths.delay is not None:
            self.threads.sleep(self.deaths.delay())
            new = self.drivers[self.rank].replacement()
            new.store = self.store
            self.tell(new.incarnation(self.rank))
            self._read(new, self.rank, items, self.deaths, trained)
        return trained


@pytest.mark.parametrize("part", range(PARTS))
def test_a_learner_that_goes_on_after_it_was_given_up_trains_on_nothing_of_others(
    pool: ThreadPoolExecutor, part: int
) -> None:
    order = random.Random(part)
    robbed = 0
    schedules = math.ceil(SCHEDULES / PARTS / 2)
    for _ in range(schedules):
        nodes = order.randrange(2, 7)
        mean = order.choice([0.01, 1.0, 10.0])
        delay = order.choice([None, lambda mean=mean: order.expovariate(1 / mean)])
        deaths = Deaths((order.randrange(nodes),), NEVER, delay=delay)
        lives = [order.randrange(40)]
        epochs = Stopped(pool, nodes, order, lives, lambda: False, deaths)
        items = order.randrange(nodes, 60)
        trained = epochs.run(items, deaths)
        assert Counter(item for own in trained for item in own) == Counter(range(items))
        robbed += epochs.robbed
    assert robbed > schedules / 20
