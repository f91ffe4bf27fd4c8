"""Waits for gloo end when a learner is lost, also where gloo forgets them."""

import os
import signal
import threading
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from processes import launch
from torch import nn

from espnet_distopt.core.effects import Effect, NeighbourAllGather
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import waiter
from espnet_distopt.distributed.collectives import TAG
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.distributed.waiter import Waiter, in_vain
from espnet_distopt.errors import PeerLostError
from espnet_distopt.session import Session
from tests.distributed.forgotten import Forgotten


class Failing:
    def wait(self) -> None:
        raise RuntimeError("Connection closed by peer")


class Complete:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


def waiting(monkeypatch: pytest.MonkeyPatch) -> tuple[Waiter, list[str]]:
    """Return a waiter that is quick to give up, and what it does when it gives up."""
    monkeypatch.setattr(waiter, "LOOK", 0.01)
    monkeypatch.setattr(waiter, "GRACE", 0.01)
    given_up: list[str] = []
    return Waiter(lambda: given_up.append("given up")), given_up


def hope() -> None:
    """Say that no wait is in vain."""


def give_up() -> str:
    """Say that every wait is in vain."""
    return "learner 1 died"


@pytest.mark.parametrize(
    ("ranks", "lost", "why"),
    [
        ((0, 2), None, None),
        ((), None, None),
        ((0, 1), None, "the connection to a learner is closed"),
        ((0, 2), "learner 2 died", "learner 2 died"),
    ],
)
def test_a_wait_for_one_that_is_no_member_is_in_vain(
    ranks: tuple[int, ...], lost: str | None, why: str | None
) -> None:
    live = SimpleNamespace(members=Members(1, (0, 2)), lost=lost)
    assert in_vain(cast(Liveness, live), ranks) == why


def test_a_wait_in_vain_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, given_up = waiting(monkeypatch)
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.wait([Forgotten()], give_up)
    assert given_up == ["given up"]
    after = Complete()
    wait.wait([after, after], give_up)  # The next wait has a thread of its own.
    assert after.waits == 2


def test_a_wait_is_left_behind_as_soon_as_it_is_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait, given_up = waiting(monkeypatch)
    answers = iter([None, None, "learner 1 died"])
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.wait([Forgotten()], lambda: next(answers))
    assert given_up == ["given up"]


def test_jobs_behind_one_that_is_left_behind_are_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait, _ = waiting(monkeypatch)
    forgotten, behind = wait.begin([Forgotten()]), wait.begin([Complete()])
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.end(forgotten, give_up)
    assert behind.ended.wait(60)
    wait.end(behind, hope)


def test_what_has_begun_to_be_done_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes to a tensor, from which a repeated average would begin anew."""
    wait, given_up = waiting(monkeypatch)
    begun, go_on = threading.Event(), threading.Event()

    def after() -> None:
        begun.set()
        go_on.wait()

    job = wait.begin([Complete()], after)
    assert begun.wait(60)
    threading.Timer(0.3, go_on.set).start()
    wait.end(job, give_up)
    assert go_on.is_set() and not given_up


def test_what_was_left_behind_is_not_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait, _ = waiting(monkeypatch)
    go_on, done = threading.Event(), list[str]()
    job = wait.begin([SimpleNamespace(wait=go_on.wait)], lambda: done.append("done"))
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.end(job, give_up)
    go_on.set()
    assert job.ended.wait(60) and not done


def test_a_thread_that_was_left_behind_ends_with_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    wait, _ = waiting(monkeypatch)
    go_on = threading.Event()
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.wait([SimpleNamespace(wait=go_on.wait)], give_up)
    [left] = set(threading.enumerate()) - before
    go_on.set()
    left.join(60)
    assert not left.is_alive()


def test_it_can_be_closed_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, _ = waiting(monkeypatch)
    monkeypatch.setattr(waiter, "GRACE", 60)
    before, operation = set(threading.enumerate()), Complete()
    wait.wait([operation], hope)
    assert len(set(threading.enumerate()) - before) == 1
    wait.close()
    assert not set(threading.enumerate()) - before
    wait.wait([operation], hope)
    wait.close()
    assert operation.waits == 2


def test_an_error_of_the_operation_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, given_up = waiting(monkeypatch)
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait.wait([Failing()], hope)
    assert not given_up


def half_sent() -> str:
    """Learner 1 dies when learner 0 is writing to it."""
    tensor = torch.zeros(1 << 24)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    driver = ProcessGroupDriver(silence=3)
    try:
        with Session(model, optimizer, "dpsgd", driver):
            if driver.rank == 1:
                cast(Any, driver)._groups.messages.recv([tensor], 0, TAG)
                os.kill(os.getpid(), signal.SIGKILL)
            driver.run(exchange(tensor))
    except PeerLostError as error:
        return str(error)
    return "nothing noticed"


def exchange(tensor: torch.Tensor) -> Generator[Effect, Any, Any]:
    return (yield NeighbourAllGather(tensor, (1,)))


@pytest.mark.processes
def test_a_send_to_a_learner_that_dies_meanwhile_ends() -> None:
    found = launch(2, half_sent, timeout=20, dying=[1])
    assert "learner 1" in found[0]
