"""The queues of a session: their keys are gone when all learners have left them."""

from typing import Any
from weakref import ref

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.open_queues import Opened, OpenQueues


class Queue:
    """Has keys in the store."""


class Learner:
    """Opens queues; all of them are opened by each learner, in the same order."""

    def __init__(self, store: Any, rank: int) -> None:
        self.store, self.rank, self.queues = store, rank, OpenQueues()
        self.refers_to: list[Queue] = []

    def open(self, items: int = 0) -> Opened:
        number, queue = self.queues.opened, Queue()
        self.queues.opened += 1
        keys = [f"{number}/own", f"{number}/started"]
        self.store.set(keys[0], "1")
        self.refers_to.append(queue)
        opened = Opened(ref(queue), items, keys, keys[1], version=3)
        self.queues.used[number] = opened
        return opened


def meet(learners: list[Learner], version: int = 3) -> None:
    """Open a further queue together, as far as its keys are concerned."""
    living = [each.rank for each in learners]
    for each in learners:
        each.open()
        each.queues.announce(each.store, each.rank)
    for each in learners:
        each.queues.sweep(each.store, each.rank, living, version)


def team(size: int) -> list[Learner]:
    store = HashStore()
    return [Learner(store, rank) for rank in range(size)]


def test_keys_are_deleted_when_the_last_learner_has_dropped_the_queue() -> None:
    learners = team(3)
    store = learners[0].store
    for each in learners:
        each.open()
    for each in learners:
        meet(learners)
        assert store.check(["0/own"])
        del each.refers_to[0]
    meet(learners)
    assert not store.check(["0/own"])
    assert store.check(["1/own"])


def test_the_first_one_that_lives_deletes_them_and_nobody_waits_for_the_dead() -> None:
    learners = team(3)
    for each in learners:
        each.open()
        each.queues.announce(each.store, each.rank)
    living = learners[1:]
    for each in living:
        each.refers_to.clear()
    meet(living)
    assert not living[0].store.check(["0/own"])


def test_a_fast_learner_may_be_at_the_next_queue_already() -> None:
    """It has dropped the last one, which the other one has just opened."""
    fast, slow = team(2)
    for each in (fast, slow):
        each.open()
        each.queues.announce(each.store, each.rank)
    fast.refers_to.clear()
    fast.open()
    fast.queues.announce(fast.store, fast.rank)
    slow.queues.sweep(slow.store, slow.rank, [0, 1], 3)
    assert slow.store.check(["0/own"])


def test_the_store_does_not_fill() -> None:
    learners = team(2)
    sizes = []
    for _ in range(6):
        meet(learners)
        for each in learners:
            del each.refers_to[:-1]
        sizes.append(learners[0].store.num_keys())
    assert len(set(sizes[2:])) == 1


@pytest.mark.parametrize(
    ("started", "version", "saved", "warned"),
    [
        (10, 3, False, False),
        (7, 3, False, True),
        # A death explains why nobody has begun an item, also if a replacement has
        # joined since, so that all places are filled.
        (7, 5, False, False),
        (7, 3, True, False),
    ],
)
def test_items_that_nobody_has_begun_are_told_of(
    started: int,
    version: int,
    saved: bool,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [one] = team(1)
    one.store.set("0/started", str(started))
    one.open(10).complete = not saved
    one.refers_to.clear()
    meet([one], version)
    assert ("a work queue of 10 items was left after 7" in caplog.text) == warned


def test_a_replacement_opens_the_queue_that_is_read_or_the_next_one() -> None:
    queues = OpenQueues()
    queues.opened = 4
    assert queues.to_join() == 4
    queues.reading = 2
    assert queues.to_join() == 2
