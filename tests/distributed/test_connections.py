"""Which connections of a process are severed, and which are not."""

import socket
import threading

import pytest

from espnet_distopt.distributed import connections as module
from espnet_distopt.distributed.connections import (
    Connections,
    keeps_store,
    packed,
    ports_of,
    sockets,
    unpacked,
)


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
