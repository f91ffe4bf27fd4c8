"""Exchanges whose connection is cut at any byte: applied at both ends or at none.

And exchanges of a learner that may have been given up: it applies none.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from espnet_distopt.distributed import liveness, pairs
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.pairs import Pairs
from espnet_distopt.distributed.watch import Watch

HEADER, SIZE = 24, 1000
UP = [HEADER, HEADER, HEADER, SIZE, HEADER]
"""Bytes that the active learner sends: hello, invitation, header, tensor, receipt."""
DOWN = [HEADER, SIZE, HEADER]
"""Bytes that the passive one sends: header, tensor, verdict."""
NEVER = 10**9


def cuts(pieces: list[int]) -> list[int]:
    """Before, within and after each piece."""
    ends = [sum(pieces[:n]) for n in range(len(pieces) + 1)]
    return sorted({end + more for end in ends for more in (0, 7)})


class Proxy:
    """Stands between two learners, and cuts their connection after some bytes."""

    def __init__(self, target: tuple[str, int], up: int, down: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target, self._up, self._down = target, up, down
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            both = client, server
            for arguments in (
                (*both, self._up, both),
                (server, client, self._down, both),
            ):
                threading.Thread(target=forward, args=arguments, daemon=True).start()
            self._up = self._down = NEVER  # The next connection is a good one.

    def close(self) -> None:
        self._listener.close()


def forward(source: Any, target: Any, most: int, both: Any) -> None:
    """Forward at most so many bytes, and cut the connection then."""
    try:
        while most > 0 and (data := source.recv(min(most, 1 << 16))):
            target.sendall(data)
            most -= len(data)
    except OSError:
        pass
    for each in both:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pairs]]:
    """Return the exchanges of an active learner, 0, and a passive one, 1."""
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.PrefixStore("test", master)
    monkeypatch.setattr(liveness, "BEAT", 0.03)
    monkeypatch.setattr(liveness, "keeps_store", lambda port: False)
    both = [Liveness(store, rank, 2, silence=5) for rank in range(2)]
    for one in both:
        one.survive(lambda rank: [rank])
    pairs = [Pairs(one, Watch(one, store)) for one in both]
    yield pairs
    for one, pair in zip(both, pairs, strict=True):
        one.leave()
        pair.close()


def exchange(
    learners: list[Pairs], then: Callable[[], None] | None = None
) -> list[tuple[bool, bytes]]:
    """Return what both learners did, and what they have received.

    Args:
        learners: the active one, and the passive one.
        then: what the passive one does again and again after the exchange, until the
            active one has done with it; None means that it waits for an invitation.
    """
    active, passive = learners
    found: list[tuple[bool, bytes]] = [(False, b"")] * 2
    over = threading.Event()

    def invite() -> None:
        received = bytearray(SIZE)
        active.invite(1, epoch=1)
        applied = active.swap(1, memoryview(b"a" * SIZE), memoryview(received))
        found[0] = applied, bytes(received)
        over.set()
        passive.wakeup.wake()

    thread = threading.Thread(target=invite, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not over.wait(0.01):
        assert time.monotonic() < deadline, "the active learner waits for ever"
        if then is not None and found[1][0]:
            then()
        elif passive.await_invitation(1) == 0:
            received = bytearray(SIZE)
            applied = passive.swap(1, memoryview(b"p" * SIZE), memoryview(received))
            found[1] = applied, bytes(received)
    thread.join()
    return found


APPLIED = [(True, b"p" * SIZE), (True, b"a" * SIZE)]


def put_between(monkeypatch: pytest.MonkeyPatch, up: int, down: int) -> list[Proxy]:
    """Let learners connect through proxies; return these."""
    reachable, proxies = pairs.reachable, list[Proxy]()

    def through_proxy(address: str) -> tuple[str, int]:
        proxies.append(Proxy(reachable(address), up, down))
        return "127.0.0.1", proxies[-1].port

    monkeypatch.setattr(pairs, "reachable", through_proxy)
    return proxies


@pytest.mark.parametrize(
    ("up", "down"),
    [*((up, NEVER) for up in (*cuts(UP), NEVER)), *((NEVER, d) for d in cuts(DOWN))],
)
def test_a_connection_is_cut(
    learners: list[Pairs], monkeypatch: pytest.MonkeyPatch, up: int, down: int
) -> None:
    """Exchange over a connection that is cut, and then over a good one."""
    reachable = pairs.reachable
    proxies = put_between(monkeypatch, up, down)
    first = exchange(learners)
    assert first[0][0] == first[1][0]
    assert first == APPLIED or not first[0][0]
    if up < sum(UP) or down < sum(DOWN) - HEADER:
        assert not first[0][0], "the passive learner had no receipt"
    elif up == down:
        assert first[0][0], "nothing was cut"
    monkeypatch.setattr(pairs, "reachable", reachable)
    second = exchange(learners)
    if second != APPLIED:  # The broken connection was only noticed now.
        assert not second[0][0] and not second[1][0]
        second = exchange(learners)
    assert second == APPLIED
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize("lost", [1, HEADER - 1])
def test_a_verdict_is_found_while_the_passive_learner_waits_for_a_step(
    learners: list[Pairs], monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """It waits for no invitation then, and may not step before the active one does."""
    proxies = put_between(monkeypatch, NEVER, sum(DOWN) - lost)
    assert exchange(learners, then=learners[1].settle) == APPLIED
    proxies[0].close()


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_learner_that_dies_while_another_waits_for_a_step_is_suspected(
    learners: list[Pairs], waiting: int
) -> None:
    """Nobody else may notice: the other one may wait in a barrier for the dead one."""
    assert exchange(learners) == APPLIED
    one, other = learners[waiting], learners[1 - waiting]
    one.settle()
    assert not one._liveness.suspects([1 - waiting])
    other.close()  # As it happens when a process dies; its heartbeats go on here.
    one._liveness.leave()  # They would clear the suspicion.
    one.settle()
    assert one._liveness.suspects([1 - waiting])


def test_a_passive_learner_without_a_lease_lets_nobody_apply(
    learners: list[Pairs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners[1]._liveness, "has_lease", lambda: False)
    assert [applied for applied, _ in exchange(learners)] == [False, False]


def test_an_active_learner_without_a_lease_waits_and_ends_if_it_was_given_up(
    learners: list[Pairs], monkeypatch: pytest.MonkeyPatch
) -> None:
    active, passive = learners
    live, ended = active._liveness, []
    swap, leases = active.swap, iter([True])  # It has one when it invites.
    monkeypatch.setattr(live, "has_lease", lambda: next(leases, False))

    def swapped(*arguments: Any) -> bool:
        threading.Timer(0.3, live.note, ["the others have gone on"]).start()
        try:
            return swap(*arguments)
        except RuntimeError as error:
            ended.append(str(error))
            return False

    monkeypatch.setattr(active, "swap", swapped)
    found = exchange([active, passive])
    assert [applied for applied, _ in found] == [False, True]
    assert ended == ["the others have gone on"]
