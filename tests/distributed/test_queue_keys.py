"""The keys of work queues: each queue's own, and gone when all have left it."""

from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.queue_keys import QueueKeys


class Queue:
    """Has keys in the store."""


def team(size: int) -> tuple[Any, list[QueueKeys]]:
    store = HashStore()
    return store, [QueueKeys(store, rank, size) for rank in range(size)]


def opened(keys: QueueKeys, queue: Queue, items: int = 0) -> str:
    """The prefix of a queue that has been opened."""
    prefix = keys.prefix()
    keys.register(prefix, queue, items, [f"{prefix}own"], version=3)
    return prefix


def barrier(*everybody: QueueKeys, version: int = 3) -> None:
    for keys in everybody:
        keys.leave()
    for keys in everybody:
        keys.sweep(range(len(everybody)), version)


def test_no_two_queues_have_a_key_in_common() -> None:
    _, (one, other) = team(2)
    prefixes = [one.prefix() for _ in range(20)]
    assert len(set(prefixes)) == 20
    assert not any(a != b and a.startswith(b) for a in prefixes for b in prefixes)
    assert [other.prefix() for _ in range(20)] == prefixes


def test_keys_are_deleted_when_the_last_learner_has_dropped_the_queue() -> None:
    store, learners = team(3)
    queues = [Queue() for _ in learners]
    for keys, queue in zip(learners, queues, strict=True):
        prefix = opened(keys, queue)
    store.set(f"{prefix}own", "1")
    del keys, queue
    for _ in range(3):
        barrier(*learners)
        assert store.check([f"{prefix}own"])
        queues.pop()
    before = store.num_keys()
    barrier(*learners)
    assert not store.check([f"{prefix}own"])
    assert not store.check([f"{prefix}left"])
    assert store.num_keys() < before
    assert store.num_keys() == 0


@pytest.mark.parametrize(("started", "warned"), [(10, False), (7, True)])
def test_items_that_nobody_has_begun_are_told_of(
    started: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, [keys] = team(1)
    store.set(f"{opened(keys, Queue(), 10)}started", str(started))
    barrier(keys)
    assert ("a work queue of 10 items was left after 7" in caplog.text) == warned


def test_a_death_explains_why_nobody_has_begun_an_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if a replacement has joined since, so that all places are filled."""
    store, [keys] = team(1)
    store.set(f"{opened(keys, Queue(), 10)}started", "9")
    barrier(keys, version=5)
    assert not caplog.text


def test_a_queue_that_is_saved_may_be_left(caplog: pytest.LogCaptureFixture) -> None:
    _, [keys] = team(1)
    queue = Queue()
    keys.stop(opened(keys, queue, 10))
    del queue
    barrier(keys)
    assert not caplog.text
