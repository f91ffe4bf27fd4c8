"""A learner that serves its state to a replacement, in one process."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from espnet_distopt.distributed import keys, liveness
from espnet_distopt.distributed.addresses import reachable
from espnet_distopt.distributed.joining import LATER, StateServer, _ask
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.pairs import token_of
from espnet_distopt.distributed.watch import Watch


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(liveness, "keeps_store", lambda port: False)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    live = Liveness(store, 0, 2)
    yield Watch(live, store)
    live.leave()


def ask(watch: Watch) -> Any:
    live = watch.liveness
    address = watch.store.get(keys.host("0.0")).decode()
    return _ask(live, watch, 0, reachable(address), token_of(watch))


def test_a_state_is_not_written_down_once_the_gossip_is_over(watch: Watch) -> None:
    over, written = [True], []

    def state() -> dict[str, Any]:
        written.append(1)
        return {"parameters": torch.ones(3)}

    host = StateServer(watch.liveness, watch, lambda: over[0])
    assert ask(watch) is LATER
    host.end_step(state)
    assert not written
    over[0] = False
    step = threading.Event()

    def train() -> None:
        while not step.wait(0.02):
            host.end_step(state)

    thread = threading.Thread(target=train)
    thread.start()
    assert ask(watch)["parameters"].tolist() == [1, 1, 1]
    step.set()
    thread.join()
    assert len(written) == 1
    host.close()


def test_a_failure_to_serve_one_replacement_does_not_end_the_service(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([ValueError("no such tensor"), None])
    answer = StateServer._answer

    def first_fails(host: StateServer, asking: Any) -> None:
        if (error := next(answers)) is not None:
            raise error
        answer(host, asking)

    monkeypatch.setattr(StateServer, "_answer", first_fails)
    host = StateServer(watch.liveness, watch, lambda: True)
    with pytest.raises(OSError, match=r"closed|reset"):
        ask(watch)
    assert ask(watch) is LATER
    assert "was not served" in caplog.text
    host.close()
