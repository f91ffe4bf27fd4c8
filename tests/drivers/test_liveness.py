"""Heartbeats and last words, in one process with a store of its own."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from espnet_distopt.drivers import liveness
from espnet_distopt.drivers.liveness import Liveness, PeerLostError, Watch


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(liveness, "SLICE", timedelta(milliseconds=30))
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield dist.PrefixStore("test", master)
    del master  # it serves as long as it lives


@pytest.fixture
def pair(store: Any) -> Iterator[tuple[Liveness, Liveness]]:
    both = Liveness(store, 0, 2, silence=0.5), Liveness(store, 1, 2, silence=0.5)
    yield both
    for one in both:
        one.stop()


def test_a_key_that_is_there_is_returned(
    store: Any, pair: tuple[Liveness, Liveness]
) -> None:
    store.set("key", b"value")
    assert Watch(pair[0], store).wait_for("key", [1]) == b"value"


def test_waiting_outlasts_the_silence_while_the_peer_lives(
    store: Any, pair: tuple[Liveness, Liveness]
) -> None:
    other = store.clone()
    late = threading.Timer(1.5, other.set, ("late", "1"))
    late.start()
    assert Watch(pair[0], store).wait_for("late", [1]) == b"1"
    late.join()


def test_a_silent_peer_is_named(store: Any, pair: tuple[Liveness, Liveness]) -> None:
    pair[1].stop()
    with pytest.raises(PeerLostError, match=r"learner 1 has been silent for .* log"):
        Watch(pair[0], store).wait_for("never", [1])


def test_others_that_are_silent_do_not_matter(
    store: Any, pair: tuple[Liveness, Liveness]
) -> None:
    watch = Watch(pair[0], store)
    for _ in range(3):
        watch.check([1])
        time.sleep(0.3)


def test_last_words_of_anybody_end_the_wait(
    store: Any, pair: tuple[Liveness, Liveness]
) -> None:
    pair[1].last_words("learner 1 ended with OSError: disk full, ü")
    with pytest.raises(PeerLostError, match="disk full, ü"):
        Watch(pair[0], store).wait_for("never", [])


def test_the_first_last_words_stay(store: Any, pair: tuple[Liveness, Liveness]) -> None:
    pair[1].last_words("the cause")
    pair[0].last_words("a consequence")
    with pytest.raises(PeerLostError, match=r"^the cause$"):
        Watch(pair[0], store).check([])


def test_heartbeats_of_the_living_go_on(
    store: Any, pair: tuple[Liveness, Liveness]
) -> None:
    first = store.add("beat/1", 0)
    deadline = time.monotonic() + 5
    while store.add("beat/1", 0) < first + 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pair[1].stop()
    count = store.add("beat/1", 0)
    time.sleep(0.1)
    assert store.add("beat/1", 0) == count


class GoneStore:
    """A store whose host has died."""

    def clone(self) -> "GoneStore":
        return self

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("connection refused")

    def wait(self, keys: list[str], limit: timedelta) -> None:
        raise dist.DistNetworkError("connection refused")


def test_a_lost_store_is_said_to_be(pair: tuple[Liveness, Liveness]) -> None:
    watch = Watch(pair[0], GoneStore())
    with pytest.raises(PeerLostError, match="the rendezvous store is gone"):
        watch.wait_for("key", [1])
    lost = watch.explain(RuntimeError("closed"), "an all-reduce")
    assert "learner 0: an all-reduce has failed: the rendezvous store" in str(lost)
