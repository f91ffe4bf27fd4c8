"""Which connections of a process are severed, and which are not."""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import launch

from espnet_distopt.core import protocols
from espnet_distopt.distributed import connections as module
from espnet_distopt.distributed.connections import (
    Connections,
    keeps_store,
    packed,
    ports_of,
    sockets,
    unpacked,
)
from espnet_distopt.errors import PeerLostError
from tests.sessions import session, step


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(server.getsockname())
    return client, server.accept()[0]


def to_store(server: socket.socket) -> Connections:
    """Return connections of a driver whose store is `server`."""
    return Connections(server.getsockname()[1])


def test_severing_ends_a_wait_of_another_thread(server: socket.socket) -> None:
    connections = to_store(server)
    with connections.opening():
        client, _ = connect(server)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(client.recv(1)))
    reader.start()
    connections.sever()
    reader.join(10)
    assert read == [b""]


def test_a_closed_connection_is_not_taken_for_the_next(server: socket.socket) -> None:
    connections = to_store(server)
    with connections.opening():
        client, peer = connect(server)
    number = client.fileno()
    client.close()
    peer.close()
    other, peer = connect(server)
    assert other.fileno() == number, "the descriptor is used again"
    connections.sever()
    assert_open(other, peer)


def test_others_may_be_opened_while_some_are_severed(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, later = to_store(server), []
    with connections.opening():
        earlier = [connect(server) for _ in range(3)]

    def open_another(_: socket.socket) -> None:
        with connections.opening():
            later.append(connect(server))

    monkeypatch.setattr(module, "_shut_down", open_another)
    connections.sever()
    assert len(later) == len(earlier)


def ports(connection: socket.socket) -> tuple[int, int]:
    return connection.getsockname()[1], connection.getpeername()[1]


def assert_open(client: socket.socket, peer: socket.socket) -> None:
    client.sendall(b"x")
    assert peer.recv(1) == b"x"


def test_connections_to_learners_are_adopted_and_no_others(
    server: socket.socket,
) -> None:
    store = socket.create_server(("127.0.0.1", 0))
    connections = to_store(store)
    kept = connect(store)
    before = sockets()
    learner, foreign = connect(server), connect(server)
    with connections.opening():
        logger = connect(server)
        own = connect(store)
    found = sockets() - before
    connections.adopt(found, [ports(kept[1]), ports(learner[1]), ports(own[1])])
    connections.sever()
    assert learner[0].recv(1) == b""
    assert own[0].recv(1) == b""
    for open_still in (kept, foreign, logger):
        assert_open(*open_still)


def test_a_process_knows_both_ends_of_its_connections(server: socket.socket) -> None:
    ends = connect(server)
    assert {*map(ports, ends)} <= {*ports_of(sockets())}


def test_published_ports_are_short() -> None:
    """All learners read those of all others, which have as many connections each."""
    found = [(1, 65535), (40123, 2)]
    assert unpacked(packed(found)) == found
    assert len(packed(found)) == 8
    assert unpacked(packed([])) == []


def test_who_listens_keeps_the_store(server: socket.socket) -> None:
    port = server.getsockname()[1]
    assert keeps_store(port)
    server.close()
    assert not keeps_store(port)
    assert not keeps_store(None)


def log_beside(port: int) -> int:
    """Connect to a server all the time while learners connect, and one of them dies.

    Returns the number of its connections that were shut.
    """
    logging, clients = True, list[socket.socket]()

    def connect_again_and_again() -> None:
        while logging:
            clients.append(socket.create_connection(("127.0.0.1", port)))
            time.sleep(0.005)

    logger = threading.Thread(target=connect_again_and_again, daemon=True)
    logger.start()
    for last in (False, False, True):
        with session("local_sgd", period=1) as run:
            for count in range(6):
                if last and count == 3 and run.learner.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(run)
            run.finish()
    assert run.driver.members.ranks == (0, 2)
    logging = False
    logger.join()
    assert len(clients) > 20
    return sum(map(is_shut, clients))


def is_shut(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.mark.processes
def test_connections_of_others_outlive_a_learner(server: socket.socket) -> None:
    """Whatever a logger or a database opens meanwhile is none of the driver's."""
    kept = []

    def serve() -> None:
        while True:
            kept.append(server.accept())

    threading.Thread(target=serve, daemon=True).start()
    found = launch(3, log_beside, server.getsockname()[1], dying=[1])
    assert found == [0, None, 0]


SILENCE = 1000.0


def fork(until: Path) -> None:
    """Fork a process that does nothing until a file exists."""
    if os.fork() == 0:
        deadline = time.monotonic() + 100
        while not until.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os._exit(0)


def train(algorithm: str, victim: int, over: str) -> str:
    """Train until the loss of `victim` is known; return what is said of it."""
    try:
        with session(algorithm, 500, silence=SILENCE) as run:
            for count in range(100_000):
                step(run)
                time.sleep(0.005)
                if count == 10:  # All of them do, and it disturbs nobody.
                    fork(Path(over))
                if run.learner.rank == victim and count == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                if victim not in run.driver.members.ranks:
                    return fate(run.driver, victim)
    except PeerLostError as error:
        return str(error)
    return "nobody was missed"


def fate(driver: Any, victim: int) -> str:
    key = protocols.fate(driver._liveness.membership.name(victim))
    return bytes(driver._liveness._store.get(key)).decode()


@pytest.mark.parametrize(
    ("algorithm", "victim", "hosted"),
    [
        *(
            (name, n, False)
            for name in ("adpsgd", "allreduce", "local_sgd")
            for n in (0, 1)
        ),
        ("adpsgd", 0, True),
    ],
)
def test_a_death_is_seen_while_what_the_learner_has_forked_lives(
    algorithm: str, victim: int, hosted: bool, tmp_path: Path
) -> None:
    """So is that of the learner that keeps the store."""
    over, args = tmp_path / "over", {"timeout": 40, "dying": {victim}, "hosted": hosted}
    try:
        found = launch(3, train, algorithm, victim, str(over), **args)
    finally:
        over.touch()
    said = "the rendezvous store is gone" if hosted else f"learner {victim} has died"
    for rank in {0, 1, 2} - {victim}:
        assert said in found[rank]
