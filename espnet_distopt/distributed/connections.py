"""The TCP connections of this process to other learners, which end waits when severed.

A wait in gloo or in the rendezvous store cannot be cancelled. A wait that times out
destroys its group, although the peer may only be slow. But shutting down a connection
ends every wait on it at once, in any thread, with an error. So no wait here relies on a
timeout: when a learner counts as lost, `sever` shuts down this process's ends of its
connections, and the waits raise.

A process that is forked without `exec`, as a DataLoader's worker is, has copies of all
descriptors of its parent. A connection is closed, and a port refuses, only when the
last copy is closed. So the peers of a learner that is killed would not notice before
its workers do, and those look for their parent every five seconds. Therefore the child
gives its copies up as soon as it is forked (`private`, `hold`); the connections stay as
they are. The copies are not closed, but replaced by /dev/null. torch's objects in the
child still refer to the descriptors and may close them later. If the numbers were free,
they might belong to other files by then.
"""

import os
import socket
import stat
import struct
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Holds connections that belong to this process alone."""

    def descriptors(self) -> Iterable[int]:
        """Return the file descriptors of the connections."""


_holders: WeakSet[Holder] = WeakSet()
_sockets: WeakSet[socket.socket] = WeakSet()


def private(connection: socket.socket) -> socket.socket:
    """Return a socket that processes which are forked from now on give up."""
    _sockets.add(connection)
    return connection


def hold(holder: Holder) -> None:
    """Let processes that are forked from now on give up what `holder` holds."""
    _holders.add(holder)


def _give_up() -> None:
    """Release the copies of this process, which was just forked."""
    found = {each.fileno() for each in _sockets} - {-1}
    found.update(*(holder.descriptors() for holder in _holders))
    if not found:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in found:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_give_up)


Opened = tuple[int, int]
"""A socket of this process: its file descriptor and its inode. A descriptor may be used
again after its socket was closed; the inode then differs."""

Ports = tuple[int, int]
"""The ports of a TCP connection: that of this process's end, and that of the other."""

_PORTS = struct.Struct("!HH")


class Connections:
    """The connections that were opened on behalf of one driver.

    The rendezvous store listens at `store_port`; None if it does not. The process that
    keeps the store also has the far ends of all learners' connections to it. Those
    belong to the other learners and are not severed.
    """

    def __init__(self, store_port: int | None = None) -> None:
        self._store_port = store_port
        self._own: set[Opened] = set()
        hold(self)

    @contextmanager
    def opening(self) -> Generator[None, None, None]:
        """Add the connections to the store that are opened inside.

        Others, which another thread may open meanwhile, are left out.
        """
        before = sockets()
        try:
            yield
        finally:
            self._add(
                {
                    opened
                    for opened, (_, other) in self._connected(sockets() - before)
                    if other == self._store_port
                }
            )

    def adopt(self, found: Collection[Opened], theirs: Collection[Ports]) -> None:
        """Add those of some sockets of this process that lead to other learners.

        A connection leads to a learner if that one has its other end: `theirs` are the
        ports of the other learners' sockets (`ports_of`). So those to a debugger or a
        database are left out; and so are those to the store.
        """
        ends = set(theirs)
        self._add(
            {
                opened
                for opened, (own, other) in self._connected(found)
                if (other, own) in ends and other != self._store_port
            }
        )

    def _add(self, opened: set[Opened]) -> None:
        """Add sockets to a new set: another thread may be severing those of the old."""
        self._own = self._own | opened

    def sever(self) -> None:
        """Shut all connections down: every wait on them ends with an error."""
        for opened, _ in self._connected(self._own):
            with _socket(opened) as connection:
                if connection is not None:
                    _shut_down(connection)

    def descriptors(self) -> list[int]:
        """Return the descriptors of this driver's own connections."""
        return [opened[0] for opened in self._own if _is_open(opened)]

    def _connected(self, found: Collection[Opened]) -> Iterator[tuple[Opened, Ports]]:
        """Yield those sockets that are connected, each with its ports.

        The far ends of connections to a store that this process keeps are left out.
        """
        for opened, ports in _with_ports(found):
            if ports[0] != self._store_port:
                yield opened, ports


class KeptStore:
    """The store that this process keeps: its port, and its clients' connections."""

    def __init__(self, port: int | None) -> None:
        self._port = port
        hold(self)

    def descriptors(self) -> list[int]:
        """Return the descriptors of the port and of the connections, as of now."""
        found = []
        for opened in sockets():
            with _socket(opened) as connection:
                if connection is not None and _own_port(connection) == self._port:
                    found.append(opened[0])
        return found


def keeps_store(port: int | None) -> bool:
    """Return whether this process listens at `port`, and so keeps the store."""
    listens = socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    for opened in sockets() if port is not None else ():
        with _socket(opened) as connection:
            there = connection is not None and _own_port(connection) == port
            if connection is not None and there and connection.getsockopt(*listens):
                return True
    return False


def ports_of(found: Collection[Opened]) -> list[Ports]:
    """Return the ports of those sockets that are TCP connections."""
    return [ports for _, ports in _with_ports(found)]


def packed(connections: Collection[Ports]) -> bytes:
    """Return four bytes for each connection: N learners read N^3 of these in all."""
    return b"".join(_PORTS.pack(*each) for each in connections)


def unpacked(published: bytes) -> list[Ports]:
    """Return what `packed` was given."""
    return [(own, other) for own, other in _PORTS.iter_unpack(published)]


def _with_ports(found: Collection[Opened]) -> Iterator[tuple[Opened, Ports]]:
    """Yield those sockets that are connected, each with its ports."""
    for opened in found:
        with _socket(opened) as connection:
            own = _own_port(connection) if connection is not None else None
            if connection is None or own is None:
                continue
            try:
                yield opened, (own, connection.getpeername()[1])
            except OSError:  # The socket listens, or its peer has gone.
                continue


def sockets() -> set[Opened]:
    """Return the sockets that are open in this process."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # The descriptor that has listed the folder is closed again.
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(name), status.st_ino))
    return found


@contextmanager
def _socket(opened: Opened) -> Generator[socket.socket | None, None, None]:
    """Give a second handle of a socket, or None if the socket was closed meanwhile."""
    try:
        copy = os.dup(opened[0])
    except OSError:
        yield None
        return
    if not _is_open((copy, opened[1])):
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as handle:
        yield handle


def _is_open(opened: Opened) -> bool:
    """Return whether a socket is open, and its descriptor is not another file's."""
    descriptor, inode = opened
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # The peer has shut it down before.
        return


def _own_port(connection: socket.socket) -> int | None:
    """Return the port of this end of a TCP connection, or None if it is none."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    port: int = connection.getsockname()[1]
    return port
