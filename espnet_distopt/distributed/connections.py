"""The TCP connections of this process to other learners, so that a wait can be ended.

A wait in gloo or in the rendezvous store cannot be cancelled, and one that times out
destroys its group although the peer may only be slow. A connection that is shut down,
on the other hand, ends every wait on it at once, in whichever thread, with an error.
So nobody here waits with a timeout: when a learner counts as lost, `sever` shuts down
this process's ends of its connections, and the waits raise.
"""

import os
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager

Opened = tuple[int, int]
"""A socket of this process: its file descriptor and its inode. Descriptors are used
again after a socket has been closed, inodes tell."""


class Connections:
    """Connections that were opened on behalf of one driver.

    Args:
        store_port: where the rendezvous store listens, if it does. A process that keeps
            the store also has the other ends of everybody's connections to it, which
            are theirs.
    """

    def __init__(self, store_port: int | None = None) -> None:
        self._store_port = store_port
        self._own: set[Opened] = set()

    @contextmanager
    def opening(self) -> Generator[None, None, None]:
        """Inside, connections are opened; they belong to this driver from then on."""
        before = _sockets()
        try:
            yield
        finally:
            self._own |= _sockets() - before

    def adopt_others(self) -> None:
        """Take over what connects this process to the same hosts as its own do.

        These are the connections of the default process group, in which a user's own
        collectives wait for learners just as ours do. Those to the store are left out.
        """
        hosts = {host for _, host, _ in self._connected(self._own)}
        self._own |= {
            opened
            for opened, host, port in self._connected(_sockets() - self._own)
            if host in hosts and port != self._store_port
        }

    def sever(self) -> None:
        """Shut all of them down: every wait on them ends with an error."""
        for opened, _, _ in self._connected(self._own):
            with _socket(opened) as connection:
                if connection is not None:
                    _shut_down(connection)

    def _connected(self, sockets: set[Opened]) -> Iterator[tuple[Opened, str, int]]:
        """Yield those that are connected, each with its peer's host and port."""
        for opened in sockets:
            with _socket(opened) as connection:
                ends = _ends(connection) if connection is not None else None
                if ends is not None and ends[0] != self._store_port:
                    yield opened, *ends[1:]


def keeps_store(port: int | None) -> bool:
    """Return whether this process listens at `port`, and so keeps the store."""
    for opened in _sockets():
        with _socket(opened) as connection:
            if connection is not None and _listens(connection, port):
                return True
    return False


def _sockets() -> set[Opened]:
    """Return the sockets that are open in this process."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # the one that listed the folder has been closed
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(name), status.st_ino))
    return found


@contextmanager
def _socket(opened: Opened) -> Generator[socket.socket | None, None, None]:
    """Give a second handle of a socket; None if it has been closed meanwhile."""
    descriptor, inode = opened
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as handle:
        yield handle


def _ends(connection: socket.socket) -> tuple[int, str, int] | None:
    """Return the own port, the peer's host and port; None: it is not connected."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        own, peer = connection.getsockname(), connection.getpeername()
    except OSError:  # it listens, or its peer has gone
        return None
    return own[1], peer[0].removeprefix("::ffff:"), peer[1]


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # its peer was faster
        return


def _listens(connection: socket.socket, port: int | None) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens) and connection.getsockname()[1] == port
