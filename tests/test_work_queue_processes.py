"""Work queues of real processes: slow stores, several queues, learners that differ."""

import re
import time
from collections import Counter
from itertools import chain
from typing import Any

import pytest
from processes import launch
from test_work_queue import identity, session

from espnet_distopt import Session, WorkQueue
from espnet_distopt.errors import InputError


class Delayed:
    """A store whose operations take some milliseconds, as over a network."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        time.sleep(self._seconds)
        return getattr(self._store, name)


def train(seconds: float) -> None:
    """Take this long, and end when others do, who then all steal at the same moment."""
    time.sleep(seconds - time.time() % 0.05)


def take_over_a_slow_store(epochs: int, items: int) -> list[list[int]]:
    with session("adpsgd") as run:
        run.driver._store = Delayed(run.driver.store, 0.005)  # type: ignore[attr-defined]
        slow = run.learner.rank == run.learner.size - 1
        trained = []
        for _ in range(epochs):
            trained.append([])
            for item in WorkQueue(run, items).read(identity):
                trained[-1].append(item)
                train(0.5 if slow else 0.05)
        run.barrier()
    return trained


def test_over_a_slow_store_every_item_is_dealt_once() -> None:
    results = launch(8, take_over_a_slow_store, 4, 40)
    for epoch in zip(*results, strict=True):
        assert Counter(chain(*epoch)) == Counter(range(40))


def take_in_turn(*runs: Session) -> list[list[int]]:
    """Read three queues of each session, an item of each in turn."""
    queues = [WorkQueue(run, 9 + n) for n in range(3) for run in runs]
    trained: list[list[int]] = [[] for _ in queues]
    reads = [queue.read(identity) for queue in queues]
    for _ in range(40):
        for own, read in zip(trained, reads, strict=True):
            own.extend(item for item in [next(read, None)] if item is not None)
        time.sleep(0.001 * runs[0].learner.rank)
    return trained


def take_in_two_sessions() -> list[list[int]]:
    with session("adpsgd") as run, session("adpsgd") as other:
        trained = take_in_turn(run, other)
        for each in (run, other):
            each.barrier()
    return trained


def dealt_whole(results: list[list[list[int]]]) -> None:
    for number, queue in enumerate(zip(*results, strict=True)):
        assert Counter(chain(*queue)) == Counter(range(9 + number // 2))


def test_three_queues_at_once_of_two_sessions_deal_everything() -> None:
    dealt_whole(launch(2, take_in_two_sessions))
    with session("adpsgd") as run, session("adpsgd") as other:
        dealt_whole([take_in_turn(run, other)])


def keys_after_epochs() -> list[bool]:
    with session("adpsgd") as run:
        for _ in range(4):
            for _ in WorkQueue(run, 6).read(identity):
                pass
        run.barrier()
        store = run.driver.store
        there = [store.check([f"work/{n}/share/0"]) for n in range(4)]
        run.barrier()
    return there


def test_the_store_forgets_the_queues_of_earlier_epochs() -> None:
    for there in launch(2, keys_after_epochs):
        assert there[0] is False
        assert there[3] is True


def refused(run: Session, items: int, **options: Any) -> str:
    with pytest.raises(InputError) as refusal:
        WorkQueue(run, items, **options)
    return str(refusal.value)


def differ() -> list[Any]:
    with session("adpsgd") as run, session("hadpsgd", per_node=2) as node:
        rank = run.learner.rank
        state = {"items": 30, "left": [[[2 + rank, 30, 1]], []]}
        messages = [
            refused(run, 30 + rank),
            refused(run, 30, state=state),
            refused(node, 30, state={**state, "left": [state["left"][0]]}),
        ]
        items = list(WorkQueue(run, 30).read(identity))
        run.barrier()
    return [messages, items]


def test_learners_that_differ_are_all_refused_in_one_line() -> None:
    (messages, items), (same, other_items) = launch(2, differ)
    assert messages == same
    assert Counter(items + other_items) == Counter(range(30))
    assert all("\n" not in message for message in messages)
    patterns = [
        r"^learner (0 .* 30 items, and learner 1 .* 31:|1 .* 31 items, .* 0 .* 30:)",
        r"^learner [01] .* another state than learner [01]: resume all",
        r"^learner [01] .* another state than learner [01]: resume all",
    ]
    for message, pattern in zip(messages, patterns, strict=True):
        assert re.search(pattern, message), message
