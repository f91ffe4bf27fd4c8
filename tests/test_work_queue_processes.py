"""Work queues of real processes: several queues, learners that differ."""

import re
import time
from collections import Counter
from itertools import chain
from typing import Any

import pytest
from processes import launch
from test_work_queue import identity

from espnet_distopt import Session, WorkQueue
from espnet_distopt.errors import InputError
from tests.sessions import session


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
