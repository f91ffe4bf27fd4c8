"""Heartbeats and last words, in one process with a store of its own."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from espnet_distopt.core.protocols import Membership
from espnet_distopt.distributed import keys, liveness
from espnet_distopt.distributed import watch as watch_module
from espnet_distopt.distributed.heartbeats import LEFT
from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.distributed.liveness import Liveness, processes, wait_for_leavers
from espnet_distopt.distributed.watch import Watch, explain, of_network
from espnet_distopt.errors import PeerLostError

WHAT = "an exchange"


@pytest.fixture(autouse=True)
def nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process plays all learners: none may wait for the others to leave."""
    monkeypatch.setattr(liveness, "keeps_store", lambda port: False)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(liveness, "BEAT", 0.03)
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.PrefixStore("test", master)


@pytest.fixture
def pair(store: Any) -> Iterator[list[Liveness]]:
    both = [Liveness(store, rank, 2, silence=0.5) for rank in range(2)]
    yield both
    for one in both:
        one.leave()


def test_waiting_outlasts_the_silence_while_the_peer_lives(
    store: Any, pair: list[Liveness], capfd: pytest.CaptureFixture[str]
) -> None:
    other = store.clone()
    late = threading.Timer(2.5, other.set, ("late", "1"))
    late.start()
    assert Watch(pair[0], store).wait_for("late", WHAT) == b"1"
    late.join()
    assert capfd.readouterr().err == "", "torch must not warn of a wait"


def test_waiting_in_a_file_store_outlasts_its_slices(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 2)
    live = Liveness(dist.PrefixStore("test", store), 0, 2)
    late = threading.Timer(
        2.5, dist.FileStore(str(tmp_path / "store"), 2).set, ("late", "1")
    )
    late.start()
    assert Watch(live, store).wait_for("late", WHAT) == b"1"
    late.join()
    live.leave()


def freeze(one: Liveness) -> None:
    """Stop a heartbeat as a process that is stopped does: without a word."""
    one._stop.set()


def test_one_that_has_left_is_missed_by_who_waits_for_it(
    store: Any, pair: list[Liveness]
) -> None:
    pair[1].leave()
    time.sleep(1.5)
    assert pair[0].lost is None
    with pytest.raises(PeerLostError, match="learner 1 has left the session"):
        Watch(pair[0], store).wait_for("never", WHAT)


def test_the_first_last_words_end_waits_and_stay(
    store: Any, pair: list[Liveness]
) -> None:
    pair[1].leave("learner 1 ended with OSError: disk full, ü")
    with pytest.raises(PeerLostError, match="disk full, ü"):
        Watch(pair[0], store).wait_for("never", WHAT)
    pair[0].leave("a consequence")
    assert "disk full, ü" in store.get("failed").decode()


def test_one_whom_the_others_have_given_up_is_told_so(
    store: Any, pair: list[Liveness]
) -> None:
    pair[1].leave("learner 0 has been silent for 30 s")
    assert "have given this learner up" in str(pair[0].wait_for_note(5))


def test_one_second_costs_two_operations_however_many_learners(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter once asked for each heartbeat by itself: N(N-1) operations a second."""
    monkeypatch.setattr(liveness, "BEAT", 0.05)
    counted = Counting(store)
    for rank in range(1, 64):
        store.set(keys.beat(f"{rank}.0"), "0")
    one = Liveness(counted, 0, 64)
    while counted.operations.count("set") < 12:
        time.sleep(0.01)
    one.leave()
    assert counted.operations.count("multi_get") <= 12
    assert set(counted.operations) == {"compare_set", "set", "check", "multi_get"}
    # Whether all have begun, and whether the farewell has arrived.
    assert counted.operations.count("check") == 2


class Counting:
    """A store that notes what it is asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.operations: list[str] = []

    def clone(self) -> "Counting":
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("underlying_store", "port"):
            raise AttributeError(name)
        operation = getattr(self._store, name)

        def counted(*args: Any) -> Any:
            self.operations.append(name)
            return operation(*args)

        return counted


def test_a_store_that_does_not_answer_is_noticed(
    store: Any, pair: list[Liveness]
) -> None:
    frozen = threading.Event()
    pair[0]._store = Frozen(frozen, Gone())
    with pytest.raises(PeerLostError, match=r"keeps the rendezvous store .* answered"):
        Watch(pair[0], store).wait_for("never", WHAT)
    frozen.set()


def test_who_leaves_waits_for_a_store_that_answers_late(
    store: Any, pair: list[Liveness]
) -> None:
    """Once it went after a second, and its thread came back from the store later."""
    released = threading.Event()
    threading.Timer(1.5, released.set).start()
    pair[1].silence, pair[1]._store = 30, Frozen(released, store)
    pair[1].leave()
    assert store.get("beat/1.0") == b"left"


def test_who_leaves_a_store_that_never_answers_has_no_thread_in_it() -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    before = set(threading.enumerate())
    store = dist.TCPStore("127.0.0.1", int(keeper.stdout.readline()), is_master=False)
    one = Liveness(store, 0, 2, silence=1)
    keeper.send_signal(signal.SIGSTOP)
    one.leave()
    assert not set(threading.enumerate()) - before
    keeper.kill()
    keeper.communicate()


KEEPER = """
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""


class Frozen:
    """A store that is stopped until `released`, and then answers as another one."""

    def __init__(self, released: threading.Event, store: Any) -> None:
        self._released, self._store = released, store

    def __getattr__(self, name: str) -> Any:
        self._released.wait()
        return getattr(self._store, name)


class Gone:
    """A store whose process has died."""

    def __getattr__(self, name: str) -> Any:
        def refused(*_: Any) -> None:
            raise dist.DistNetworkError("connection refused")

        return refused


def test_an_error_of_ones_own_is_not_blamed_on_others(pair: list[Liveness]) -> None:
    error = explain(pair[0], RuntimeError("Invalid scalar type"), "a broadcast")
    assert not isinstance(error, PeerLostError)
    assert str(error) == "learner 0: a broadcast has failed: Invalid scalar type"


def told(store: Any, *ended: str) -> None:
    """Write as the launcher does that processes have ended."""
    for each in ended:
        store.underlying_store.append(keys.ENDED, f"{each} ")


@pytest.fixture
def launched(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Liveness]]:
    """Begin learners whose heartbeats nobody would miss, under a launcher."""
    begun: list[Liveness] = []

    def begin(rank: int, process: int = 0, **more: Any) -> Liveness:
        monkeypatch.setenv(INCARNATION, str(process))
        begun.append(Liveness(store, rank, 3, silence=3600, **more))
        return begun[-1]

    yield begin
    for one in begun:
        one.leave()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_the_launcher_says_who_has_died(store: Any, launched: Any) -> None:
    one, other = launched(0), launched(2)
    launched(1)
    one.survive(lambda rank: [rank])
    told(store, "1.0")
    until(lambda: one.members.ranks == (0, 2))
    until(lambda: other.lost or other.members.ranks == (0, 2))
    assert store.get("fate/1.0") == b"learner 1 has died: its process is gone"


def test_without_survivors_its_word_ends_the_run(store: Any, launched: Any) -> None:
    """It does not take a heartbeat of all: learner 2 has not begun."""
    one, _ = launched(0), launched(1)
    told(store, "1.0")
    assert one.wait_for_note(10) == (
        "learner 1 has died: its process is gone; look at its log"
    )


def test_a_process_that_ends_after_it_has_left_is_not_lost(
    store: Any, launched: Any
) -> None:
    one, two = launched(0), launched(2)
    launched(1).leave()
    one.survive(lambda rank: [rank])
    told(store, "1.0", "2.0")
    until(lambda: 2 not in one.members.ranks)
    assert one.members.ranks == (0, 1)
    freeze(two)


def test_a_process_of_earlier_is_not_the_present_one(store: Any, launched: Any) -> None:
    """Learner 1 was started again before the session, and 2 within it."""
    told(store, "1.0", "2.0", "2.1")
    one, new = launched(0), launched(2, process=2, number=2)
    launched(1, process=1)
    store.set("process/2.0", "0 a machine")
    store.set("beat/2.0", "7")
    one.survive(lambda rank: [rank])
    until(lambda: one.members.ranks == (0, 1))  # 2.0 has died in it.
    assert new.membership.join(store, epoch=1)
    one.await_version(new.members.version)
    time.sleep(0.2)
    assert one.members.ranks == (0, 1, 2)
    told(store, "1.1")
    until(lambda: one.members.ranks == (0, 2))


def test_one_that_dies_before_its_next_session_is_named(
    store: Any, launched: Any
) -> None:
    for rank, process in ((0, 0), (1, 4), (2, 0)):
        launched(rank, process).leave()
    before = processes(store, Membership(store, 0, 3))
    assert before == {0: "0.0", 1: "1.4", 2: "2.0"}
    following = dist.PrefixStore("next", store.underlying_store)
    live = Liveness(following, 0, 3, before=before)
    told(store, "1.3")
    assert live.wait_for_note(0.3) is None
    told(store, "1.4")
    said = live.wait_for_note(10)
    live.leave()
    assert said is not None
    assert said.startswith("learner 1 has died before this session: its process is")


def test_the_launchers_word_explains_why_connections_have_failed(
    store: Any, launched: Any
) -> None:
    one = launched(0)
    for rank in (1, 2):
        freeze(launched(rank))
    one.survive(lambda rank: [rank])
    told(store, "1.0")
    one.suspect([1, 2], "the network said: Connection reset by peer")
    until(lambda: not one.suspects([1, 2]))
    assert one.members.ranks == (0, 2)


def test_one_whose_connection_has_failed_is_lost_soon_without_a_launcher(
    store: Any, pair: list[Liveness]
) -> None:
    pair[0]._beats._silence = 3600
    freeze(pair[1])
    pair[0].suspect([1], "the network said: Connection reset by peer")
    said = str(pair[0].wait_for_note(10))
    assert said.startswith("learner 1 has died or does not respond: the network said")


def test_one_that_has_left_waits_for_no_heartbeat(pair: list[Liveness]) -> None:
    one = pair[0]
    one.leave()
    one._lease -= one.silence
    with pytest.raises(RuntimeError, match="has left the session"):
        one.await_lease()


AUTOGRAD = "Trying to backward through the graph a second time"


def test_a_time_in_an_error_is_not_one_of_the_network(pair: list[Liveness]) -> None:
    live = pair[0]
    for text in (AUTOGRAD, "CUDA runtime error: out of memory"):
        assert not isinstance(explain(live, RuntimeError(text), WHAT), PeerLostError)
    assert not live.suspects([1])
    for text in ("Timed out waiting 1ms for recv operation", "Wait timeout"):
        assert of_network(RuntimeError(text))


def test_an_error_of_the_network_names_whose_it_was(
    pair: list[Liveness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are told the reason alone, and all of them live."""
    monkeypatch.setattr(watch_module, "FOUND_OUT", 0.1)
    error = explain(pair[0], RuntimeError("Connection reset by peer"), WHAT)
    assert isinstance(error, PeerLostError)
    assert str(error) == error.reason
    assert error.reason.startswith("learner 0: an exchange has failed: nobody is")


def test_a_wait_of_the_main_thread_can_be_interrupted(
    store: Any, pair: list[Liveness]
) -> None:
    # not SIGINT: a shell that starts a command in the background has it ignore this
    # signal
    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    with pytest.raises(KeyboardInterrupt):
        Watch(pair[0], store).wait_for("never", WHAT)
    signal.signal(signal.SIGUSR2, before)


def test_a_silent_peer_is_named_and_foreign_connections_are_left_alone(
    store: Any, pair: list[Liveness]
) -> None:
    own, foreign = socket.socketpair(), socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(foreign.getsockname())
    server, _ = foreign.accept()
    freeze(pair[1])
    said = r"learner 0: an exchange has failed: learner 1 has been silent .* its log"
    with pytest.raises(PeerLostError, match=said):
        Watch(pair[0], store).wait_for("never", WHAT)
    client.sendall(b"through")
    assert server.recv(7) == b"through"
    for one in (*own, foreign, client, server):
        one.close()


def test_a_replacement_is_not_as_silent_as_the_dead_one_was(store: Any) -> None:
    """It joins after the dead one has been silent for longer than is allowed."""
    one = Liveness(store, 0, 2, silence=2)
    one.survive(lambda rank: [rank])
    store.set("beat/1.0", "7")
    while 1 in one.members.ranks:
        time.sleep(0.05)
    new = Liveness(store, 1, 2, silence=2, number=1)
    time.sleep(1)
    assert new.membership.join(store, epoch=1)
    one.await_version(new.members.version)
    time.sleep(1)
    assert one.members.ranks == (0, 1)
    assert new.lost is None
    for each in (one, new):
        each.leave()


def waited(store: Any, silence: float, seconds: float | None) -> float:
    begin = time.monotonic()
    wait_for_leavers(store, ["1.0", "2.0"], silence, seconds)
    return time.monotonic() - begin


def test_those_that_have_left_are_not_waited_for() -> None:
    store = dist.HashStore()
    store.set("beat/1.0", LEFT)
    store.set("beat/2.0", LEFT)
    assert waited(store, 60, None) < 30


def test_one_that_has_not_begun_is_as_one_that_is_silent() -> None:
    store = dist.HashStore()
    store.set("beat/1.0", LEFT)
    assert 0.2 <= waited(store, 0.2, None) < 30
    assert 0.1 <= waited(store, 60, 0.1) < 30
