"""A connection of two learners, whose waits end when enough has come."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from espnet_distopt.distributed.channel import LEAST, Channel, Header, Kind, WakeUp

SIZE = 6 * LEAST + 5
PIECE = LEAST // 16


class Counted(WakeUp):
    """Waits that are counted."""

    waits = 0

    def until_ready(self, *args: object, **options: object) -> set[int]:
        self.waits += 1
        return super().until_ready(*args, **options)  # type: ignore[arg-type]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel, Counted]]:
    """A socket, and the channel at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    wakeup = Counted()
    channel = Channel(near, wakeup, lambda: None, 10.0)
    with far:
        yield far, channel, wakeup
    channel.close()
    wakeup.close()


@pytest.mark.parametrize("patience", [0.1, 1e5, 3e6, 1e12])
def test_any_patience_is_one_that_the_kernel_takes(patience: float) -> None:
    wakeup = WakeUp()
    near, far = socket.create_server(("127.0.0.1", 0)), socket.socket()
    channel = Channel(far, wakeup, lambda: None, patience)
    idle = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    assert idle == (1 if patience < 1 else 32767)
    for one in (near, channel, wakeup):
        one.close()


def test_a_slow_link_wakes_the_thread_only_when_enough_has_come(
    ends: tuple[socket.socket, Channel, Counted],
) -> None:
    far, channel, wakeup = ends
    header = Header(Kind.DATA, 1, 1, SIZE)
    sent = header.packed() + bytes(range(256)) * (SIZE // 256 + 1)

    def trickle() -> None:
        for at in range(0, len(header.packed()) + SIZE, PIECE):
            far.sendall(sent[at : min(at + PIECE, len(header.packed()) + SIZE)])
            time.sleep(0.002)

    thread = threading.Thread(target=trickle)
    received = bytearray(SIZE)
    thread.start()
    # Both learners send a tensor of the same size; here this one's has been sent.
    theirs = bytearray(len(header.packed()))
    channel._move([], [memoryview(theirs), memoryview(received)])
    thread.join()
    assert received == sent[len(theirs) : len(theirs) + SIZE]
    assert wakeup.waits <= SIZE // LEAST + 1


def test_a_header_after_a_tensor_ends_the_wait_for_a_reply(
    ends: tuple[socket.socket, Channel, Counted],
) -> None:
    far, channel, _ = ends
    rest = threading.Timer(0.1, far.sendall, [bytes(LEAST)])
    rest.start()  # So the tensor is waited for.
    channel._move([], [memoryview(bytearray(LEAST))])
    rest.join()
    later = threading.Timer(0.1, far.sendall, [Header(Kind.COMMIT, 1, 1).packed()])
    later.start()
    channel.await_reply()
    assert channel.receive() == Header(Kind.COMMIT, 1, 1)
    later.join()
