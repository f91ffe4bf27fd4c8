"""Which connections of a process are severed, and which are not."""

import socket
import threading

import pytest

from espnet_distopt.distributed import connections as module
from espnet_distopt.distributed.connections import (
    Connections,
    keeps_store,
    packed,
    tcp_ports,
    unpacked,
)


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(server.getsockname())
    return client, server.accept()[0]


def test_severing_ends_a_wait_of_another_thread(server: socket.socket) -> None:
    connections = Connections()
    with connections.opening():
        client, _ = connect(server)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(client.recv(1)))
    reader.start()
    connections.sever()
    reader.join(10)
    assert read == [b""]


def test_a_closed_connection_is_not_taken_for_the_next(server: socket.socket) -> None:
    connections = Connections()
    with connections.opening():
        client, peer = connect(server)
    number = client.fileno()
    client.close()
    peer.close()
    other, peer = connect(server)
    assert other.fileno() == number, "the descriptor is used again"
    connections.sever()
    other.sendall(b"x")
    assert peer.recv(1) == b"x"


def test_others_may_be_opened_while_some_are_severed(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, later = Connections(), []
    with connections.opening():
        earlier = [connect(server) for _ in range(3)]

    def open_another(_: socket.socket) -> None:
        with connections.opening():
            later.append(connect(server))

    monkeypatch.setattr(module, "_shut_down", open_another)
    connections.sever()
    assert len(later) == len(earlier) * 2


def ports(connection: socket.socket) -> tuple[int, int]:
    return connection.getsockname()[1], connection.getpeername()[1]


def test_earlier_connections_to_learners_are_adopted_and_no_others(
    server: socket.socket,
) -> None:
    store = socket.create_server(("127.0.0.1", 0))
    connections = Connections(store_port=store.getsockname()[1])
    kept, kept_peer = connect(store)
    earlier, earlier_peer = connect(server)
    debugger, debugger_peer = connect(server)
    with connections.opening():
        later = connect(server)
    connections.adopt([ports(kept_peer), ports(earlier_peer)])
    connections.sever()
    assert earlier.recv(1) == b""
    assert later[0].recv(1) == b""
    for open_still, peer in ((kept, kept_peer), (debugger, debugger_peer)):
        open_still.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_a_process_knows_both_ends_of_its_connections(server: socket.socket) -> None:
    ends = connect(server)
    assert {*map(ports, ends)} <= {*tcp_ports()}


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
