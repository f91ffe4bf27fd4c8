"""gloo listens where the other learners reach it, or says where it listens."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from processes import launch

from espnet_distopt.core.effects import NeighbourAllGather
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import gloo
from espnet_distopt.distributed.collectives import TAG
from espnet_distopt.distributed.gloo import Waiter, host_for_gloo, in_vain
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.errors import PeerLostError
from tests.distributed.forgotten import Forgotten
from tests.machines import emulated, on_two_machines
from tests.sessions import perform, session

ONE, ANOTHER = "m1/7 127.0.0.1 4000", "m2/8 10.0.0.2 4000"


@pytest.mark.parametrize(
    ("named", "towards", "learners", "found"),
    [
        ("10.0.0.7", "10.0.0.7", [], None),  # gloo finds it by the name.
        ("127.0.1.1", "10.0.0.7", [], "10.0.0.7"),
        ("127.0.1.1", "127.0.0.1", [ONE, ONE], None),  # All are on this machine.
        ("127.0.1.1", "127.0.0.1", [ONE, ANOTHER], "10.0.0.9"),  # It has the store.
    ],
)
def test_the_address_at_which_gloo_listens(
    named: str,
    towards: str,
    learners: list[str],
    found: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(gloo, "named_host", lambda: named)
    monkeypatch.setattr(gloo, "store_address", lambda store: ("n1", 29500))
    monkeypatch.setattr(gloo, "host_towards", lambda host, port: towards)
    monkeypatch.setattr(gloo, "outward_host", lambda: "10.0.0.9")
    assert host_for_gloo(None, lambda: learners) == found
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert host_for_gloo(None, lambda: learners) is None, "the user has chosen"


def test_torch_may_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(dist.ProcessGroupGloo, "create_default_device")
    group = gloo.make_group(dist.HashStore(), 0, 1, gloo.timedelta(minutes=1), None)
    assert group.size() == 1
    assert "as torch has changed" in caplog.text


LEARNER = """
import os
import sys
import torch
import torch.distributed as dist

from espnet_distopt.session import Session

# As with NCCL, the default process group connects nobody yet.
os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
dist.init_process_group("gloo")
os.environ.update(word.split("=") for word in sys.argv[1:])
model = torch.nn.Linear(2, 1)
with Session(model, torch.optim.SGD(model.parameters(), lr=0.1), "local_sgd") as run:
    print(run.mean(float(run.learner.rank)))
assert os.environ["TORCH_GLOO_LAZY_INIT"] == "1", "it is the user's"
"""


def session_on_two_machines(tmp_path: Path, *chosen: str) -> list[tuple[int, str]]:
    """Return status and output of a learner on each of two machines.

    The names of these machines mean the loopback.

    Args:
        tmp_path: a folder for files.
        chosen: variables that the learners set once they have a process group.
    """

    def words(rank: int, address: str) -> list[str]:
        own = ["env", f"RANK={rank}", f"MASTER_ADDR={address}", "MASTER_PORT=29500"]
        return [*own, sys.executable, "-c", LEARNER, *chosen]

    def become(rank: int) -> str:
        hosts = tmp_path / f"hosts{rank}"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 machine{rank}\n")
        return f"mount --bind {hosts} /etc/hosts; hostname machine{rank}"

    return on_two_machines(words, become, {"WORLD_SIZE": "2"})


@emulated
@pytest.mark.processes
def test_a_session_of_machines_whose_names_mean_the_loopback(tmp_path: Path) -> None:
    for status, printed in session_on_two_machines(tmp_path):
        assert status == 0, printed
        assert "0.5" in printed


@emulated
@pytest.mark.processes
def test_the_users_interface_counts_and_an_error_names_it(tmp_path: Path) -> None:
    found = session_on_two_machines(tmp_path, "GLOO_SOCKET_IFNAME=lo")
    assert [status for status, _ in found] == [1, 1]
    said = "".join(printed for _, printed in found)
    assert "remote=[127.0.0.1]" in said
    assert "(this learner listens at lo; GLOO_SOCKET_IFNAME names the interface" in said


class Failing:
    def wait(self) -> None:
        raise RuntimeError("Connection closed by peer")


class Complete:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


Waiting = tuple[Waiter, list[str]]


@pytest.fixture
def waiter(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Return a waiter that is quick to give up, and what it does when it gives up."""
    monkeypatch.setattr(gloo, "LOOK", 0.01)
    monkeypatch.setattr(gloo, "GRACE", 0.01)
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


def test_a_wait_in_vain_is_left_behind(waiter: Waiting) -> None:
    wait, given_up = waiter
    answers = iter([None, None, "learner 1 died"])
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.wait([Forgotten()], lambda: next(answers))
    assert given_up == ["given up"]
    after = Complete()
    wait.wait([after, after], give_up)  # The next wait has a thread of its own.
    assert after.waits == 2


def test_jobs_behind_one_that_is_left_behind_are_run(waiter: Waiting) -> None:
    wait, _ = waiter
    forgotten, behind = wait.begin([Forgotten()]), wait.begin([Complete()])
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.end(forgotten, give_up)
    assert behind.ended.wait(60)
    wait.end(behind, hope)


def test_what_has_begun_to_be_done_is_waited_for(waiter: Waiting) -> None:
    """It writes to a tensor, from which a repeated average would begin anew."""
    wait, given_up = waiter
    begun, go_on = threading.Event(), threading.Event()

    def after() -> None:
        begun.set()
        go_on.wait()

    job = wait.begin([Complete()], after)
    assert begun.wait(60)
    threading.Timer(0.3, go_on.set).start()
    wait.end(job, give_up)
    assert go_on.is_set() and not given_up


def test_what_was_left_behind_is_not_done_later_and_its_thread_ends(
    waiter: Waiting,
) -> None:
    before = set(threading.enumerate())
    wait, _ = waiter
    go_on, done = threading.Event(), list[str]()
    job = wait.begin([SimpleNamespace(wait=go_on.wait)], lambda: done.append("done"))
    with pytest.raises(RuntimeError, match="learner 1 died"):
        wait.end(job, give_up)
    [left] = set(threading.enumerate()) - before
    go_on.set()
    left.join(60)
    assert job.ended.is_set() and not done and not left.is_alive()


def test_it_can_be_closed_and_used_again(
    waiter: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, _ = waiter
    monkeypatch.setattr(gloo, "GRACE", 60)
    before, operation = set(threading.enumerate()), Complete()
    wait.wait([operation], hope)
    assert len(set(threading.enumerate()) - before) == 1
    wait.close()
    assert not set(threading.enumerate()) - before
    wait.wait([operation], hope)
    wait.close()
    assert operation.waits == 2


def test_an_error_of_the_operation_is_raised(waiter: Waiting) -> None:
    wait, given_up = waiter
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait.wait([Failing()], hope)
    assert not given_up


def half_sent() -> str:
    """Learner 1 dies when learner 0 is writing to it."""
    tensor = torch.zeros(1 << 24)
    try:
        with session("dpsgd") as run:
            driver: Any = run.driver
            if driver.rank == 1:
                driver._groups.messages.recv([tensor], 0, TAG)
                os.kill(os.getpid(), signal.SIGKILL)
            perform(driver, NeighbourAllGather(tensor, (1,)))
    except PeerLostError as error:
        return str(error)
    return "nothing noticed"


@pytest.mark.processes
def test_a_send_to_a_learner_that_dies_meanwhile_ends() -> None:
    found = launch(2, half_sent, timeout=20, dying=[1])
    assert "learner 1" in found[0]
