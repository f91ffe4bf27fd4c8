"""One TCP connection between two learners, which carries headers and tensors.

The bytes of a tensor go from its own memory to the kernel and back, without a copy in
this process. Both directions are under way at once, on one thread: two learners that
send 140 MB to each other would otherwise wait for each other's receive.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

Check = Callable[[], None]
"""Raises an error if a wait has become pointless."""


class WakeUp:
    """One thread's waits for sockets, which other threads interrupt by `wake`.

    A byte in a pipe to itself ends a wait, so none between two waits is lost.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lock, self._closed = threading.Lock(), False

    def wake(self) -> None:
        """End the wait that is under way, or the next one. Any thread may call this."""
        with self._lock, suppress(BlockingIOError):  # It may be full of earlier calls.
            if not self._closed:
                os.write(self._writer, b"!")

    def until_ready(
        self,
        reading: Collection[socket.socket],
        writing: Collection[socket.socket] = (),
        seconds: float | None = None,
    ) -> set[int]:
        """Wait until a socket is ready, `wake` is called, or `seconds` have passed.

        Returns the descriptors of those sockets that can be read or written, or that
        have failed: the next operation on such a socket says how. None means no limit.
        """
        poll = select.poll()
        for each in {*reading, *writing}:
            read = select.POLLIN if each in reading else 0
            poll.register(each, read | (select.POLLOUT if each in writing else 0))
        poll.register(self._reader, select.POLLIN)
        events = poll.poll(None if seconds is None else 1000 * seconds)
        ready = {descriptor for descriptor, _ in events}
        if self._reader in ready:
            with suppress(BlockingIOError):
                while os.read(self._reader, 4096):
                    pass
        return ready - {self._reader}

    def close(self) -> None:
        """Close the pipe: nothing waits any more, and `wake` does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)


CHUNK = 1 << 22
"""The most bytes that are handed to the kernel at a time, so that receives go on."""

LEAST = 1 << 21
"""The bytes that a wait for a tensor waits for, or what is left of it.

Otherwise a link of 1 Gbit/s wakes the thread for every few packets, about 2,000 times
for 140 MB, on processors that have a model to train. And each time the thread takes the
interpreter from the training, which may have to launch the work of a GPU.
"""

_LONGEST_IDLE = 32767
"""The most seconds that the kernel takes for TCP_KEEPIDLE."""

_LONGEST_TIMEOUT = 2**31 - 1
"""The most milliseconds that it takes for TCP_USER_TIMEOUT."""

_FORMAT = struct.Struct("<IIQQ")


class Kind(IntEnum):
    """What a header says.

    Attributes:
        INVITE: the active learner asks the passive one for an exchange.
        DATA: the tensor follows.
        RECEIVED: the active learner has the passive one's whole tensor.
        COMMIT: the passive learner has applied the exchange; the active one applies it.
        ABORT: the exchange is dropped.
    """

    INVITE = 1
    DATA = 2
    RECEIVED = 3
    COMMIT = 4
    ABORT = 5


class Header(NamedTuple):
    """What precedes a tensor, or stands alone.

    Attributes:
        kind: what it says.
        epoch: the number of the gossip's epoch.
        number: the number of the exchange, which its active learner gives.
        size: bytes of the tensor that follows.
    """

    kind: Kind
    epoch: int
    number: int
    size: int = 0

    def packed(self) -> bytes:
        """Return the bytes of the header."""
        return _FORMAT.pack(*self)


class Channel:
    """A connection; one thread uses it.

    Args:
        connection: a connected socket, which is the channel's from now on.
        wakeup: the thread's waits.
        check: called after each wake-up; raises if the wait has become pointless.
        patience: seconds after which a link that is cut counts as broken.
        incarnation: how often the learner at the other end was started before.

    Attributes:
        used: a count of the thread's exchanges when this channel was last used.
        verdict: number and verdict of the last exchange that the peer may not know of.
    """

    def __init__(
        self,
        connection: socket.socket,
        wakeup: WakeUp,
        check: Check,
        patience: float,
        incarnation: int = 0,
    ) -> None:
        self.connection = connection
        self.incarnation = incarnation
        self.used = 0
        self.verdict: tuple[int, Kind] | None = None
        self._wakeup = wakeup
        self._check = check
        self._least = 1
        connection.setblocking(False)
        _tune(connection, patience)

    def send(self, header: Header) -> None:
        """Send a header.

        Raises:
            OSError: the connection is broken.
        """
        self._move([memoryview(header.packed())], [])

    def receive(self) -> Header:
        """Wait for a header, and return it.

        Raises:
            OSError: the connection is broken.
        """
        received = bytearray(_FORMAT.size)
        self._move([], [memoryview(received)])
        return _header(received)

    def await_reply(self) -> None:
        """Wait until the peer has sent something, or the connection is broken.

        A tensor is only sent to a peer that is about to receive it. So no data waits in
        a connection for longer than a cut link takes to be noticed, however long a step
        of the peer takes.
        """
        while not self._wakeup.until_ready([self.connection]):
            self._check()

    def swap(self, header: Header, sent: memoryview, received: memoryview) -> None:
        """Send a tensor with its header, and receive the peer's of the same size.

        Raises:
            OSError: the connection is broken, or the peer has sent something else.
        """
        theirs = bytearray(_FORMAT.size)
        self._move([memoryview(header.packed()), sent], [memoryview(theirs), received])
        if _header(theirs) != header:
            raise ConnectionError(f"expected {header}, and received {_header(theirs)}")

    def is_broken(self) -> bool:
        """Return whether the peer has closed the connection, or it has failed."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection: the peer's waits end."""
        self.connection.close()

    def _move(self, sent: list[memoryview], received: list[memoryview]) -> None:
        """Send and receive the bytes of several pieces of memory, in their order."""
        out, into = [*filter(None, sent)], [*filter(None, received)]
        while out or into:
            moved = self._send(out) + self._receive(into)
            if not moved:
                reading = [self.connection] if into else []
                writing = [self.connection] if out else []
                self._wake_at(min(LEAST, sum(map(len, into))))
                self._wakeup.until_ready(reading, writing)
                self._check()
        self._wake_at(1)

    def _wake_at(self, least: int) -> None:
        """Let waits to read last until so many bytes have come, or the end of all."""
        least = max(1, least)
        if least == self._least:
            return
        self._least = least
        with suppress(OSError):  # It only spares processor time.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _send(self, pieces: list[memoryview]) -> int:
        if not pieces:
            return 0
        short = len(pieces[0]) < CHUNK
        try:
            count = self.connection.sendmsg([p[:CHUNK] for p in pieces[: 1 + short]])
        except BlockingIOError:
            return 0
        return _advance(pieces, count)

    def _receive(self, pieces: list[memoryview]) -> int:
        if not pieces:
            return 0
        try:
            count, *_ = self.connection.recvmsg_into(pieces)
        except BlockingIOError:
            return 0
        if count == 0:
            raise ConnectionResetError("the peer has closed the connection")
        return _advance(pieces, count)


def memory_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU, as bytes."""
    array: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _advance(pieces: list[memoryview], count: int) -> int:
    """Take `count` bytes from the front of `pieces`; return `count`."""
    left = count
    while left:
        step = min(left, len(pieces[0]))
        pieces[0] = pieces[0][step:]
        left -= step
        if not len(pieces[0]):
            del pieces[0]
    return count


def _header(received: bytearray) -> Header:
    kind, *rest = _FORMAT.unpack(received)
    try:
        return Header(Kind(kind), *rest)
    except ValueError as error:
        raise ConnectionError(f"no header of an exchange: {error}") from error


def _tune(connection: socket.socket, patience: float) -> None:
    """Send small messages at once, and notice within `patience` that a link is cut."""
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    third = min(max(1, round(patience / 3)), _LONGEST_IDLE)
    for name, value in (
        ("TCP_KEEPIDLE", third),
        ("TCP_KEEPINTVL", max(1, third // 2)),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", min(round(1000 * patience), _LONGEST_TIMEOUT)),
    ):
        if hasattr(socket, name):
            connection.setsockopt(tcp, getattr(socket, name), value)
