"""The one that keeps the store leaves last, but does not wait for ever."""

import time

import torch.distributed as dist

from espnet_distopt.distributed.farewell import LEFT, wait_for_leavers


def waited(store: dist.HashStore, silence: float, seconds: float | None) -> float:
    begin = time.monotonic()
    wait_for_leavers(store, {1: "beat/1", 2: "beat/2"}, silence, seconds)
    return time.monotonic() - begin


def test_those_that_have_left_are_not_waited_for() -> None:
    store = dist.HashStore()
    store.set("beat/1", LEFT)
    store.set("beat/2", LEFT)
    assert waited(store, 60, None) < 30


def test_one_that_has_not_begun_is_as_one_that_is_silent() -> None:
    store = dist.HashStore()
    store.set("beat/1", LEFT)
    assert 0.2 <= waited(store, 0.2, None) < 30
    assert 0.1 <= waited(store, 60, 0.1) < 30
