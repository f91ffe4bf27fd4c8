"""The door of a learner: where others of its run connect to it, and it to others."""

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Collection

from espnet_distopt.distributed.addresses import listen_for, reachable
from espnet_distopt.distributed.forks import private
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.wakeup import Check, WakeUp
from espnet_distopt.distributed.watch import Watch

CONNECT = 5.0
"""The most seconds that a connection may take to be made."""

TOKEN = 16
"""Bytes of the token, which tells learners of one run from strangers."""

_HELLO = struct.Struct(f"<{TOKEN}sII")


def token_of(watch: Watch) -> bytes:
    """Return the token of this run; the first learner that asks makes it.

    Args:
        watch: the calling thread's connection to the store.
    """
    made = os.urandom(TOKEN // 2).hex()
    return bytes(watch.store.compare_set("token", "", made))


class Door:
    """Makes and accepts the connections between learners.

    Whoever connects says first the token of this run, its rank and its incarnation.

    Args:
        liveness: knows which learners live.
        watch: the gossip thread's connection to the store.
        wakeup: the gossip thread's waits.
    """

    def __init__(self, liveness: Liveness, watch: Watch, wakeup: WakeUp) -> None:
        self._liveness = liveness
        self._watch = watch
        self._wakeup = wakeup
        self._listener, address = listen_for(watch.store)
        self._strangers: list[socket.socket] = []
        key = liveness.membership.address_key(liveness.rank)
        with watch.asking("publishing this learner's address"):
            self._token = token_of(watch)
            watch.store.set(key, address)

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets to wait for, before `admit`."""
        return [self._listener, *self._strangers]

    def admit(self, ready: Collection[int]) -> list[tuple[int, socket.socket]]:
        """Return the ranks and the connections of members that have connected.

        Args:
            ready: the descriptors of sockets that can be read.
        """
        admitted = []
        for stranger in [s for s in self._strangers if s.fileno() in ready]:
            self._strangers.remove(stranger)
            rank = self._rank_of(stranger)
            if rank is None:
                stranger.close()
            else:
                admitted.append((rank, stranger))
        if self._listener.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                stranger, _ = self._listener.accept()
                stranger.setblocking(False)
                self._strangers.append(private(stranger))
        return admitted

    def _rank_of(self, stranger: socket.socket) -> int | None:
        """Return the rank of a member of this run; None if it is nobody of ours."""
        try:
            token, rank, incarnation = _HELLO.unpack(stranger.recv(_HELLO.size))
        except (OSError, struct.error):
            return None
        live = self._liveness
        known = rank in live.members.ranks and token == self._token
        return rank if known and incarnation == self._incarnation(rank) else None

    def connect(self, peer: int, check: Check) -> socket.socket:
        """Connect to `peer`, and say who is connecting.

        Args:
            peer: the rank of a member.
            check: raises if the wait has become pointless.

        Raises:
            OSError: `peer` cannot be reached.
        """
        key = self._liveness.membership.address_key(peer)
        with self._watch.asking(f"connecting to learner {peer}"):
            host, port = reachable(self._watch.store.get(key).decode())
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = private(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        try:
            self._await_connection(connection, (host, port), check)
            rank = self._liveness.rank
            hello = _HELLO.pack(self._token, rank, self._incarnation(rank))
            connection.send(hello)  # An empty buffer takes it at once.
        except BaseException:
            connection.close()
            raise
        return connection

    def _await_connection(
        self, connection: socket.socket, target: tuple[str, int], check: Check
    ) -> None:
        error = connection.connect_ex(target)
        deadline = time.monotonic() + CONNECT
        while error == errno.EINPROGRESS:
            left = deadline - time.monotonic()
            if left < 0:
                raise TimeoutError(f"{target} has not answered for {CONNECT:.0f} s")
            if self._wakeup.until_ready([], [connection], left):
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            check()
        if error:
            raise OSError(error, f"connecting to {target}: {os.strerror(error)}")

    def _incarnation(self, rank: int) -> int:
        return self._liveness.membership.incarnation(rank)

    def close(self) -> None:
        """Close the door: connections are refused from now on."""
        for each in self.sockets:
            each.close()
