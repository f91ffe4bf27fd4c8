"""A replacement takes over the state of a member, which trains on meanwhile.

Every learner that can be joined listens on a port of its own. A replacement, Ben,
connects to a member, Anna, and says who he is. At the end of her next step Anna's
training thread writes her state down, which takes a pass over it; a thread of her own
sends it. If she has ended her epoch, Ben waits until she makes a step in the next one.
"""

import contextlib
import io
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch

from espnet_distopt.distributed.addresses import (
    listen,
    own_address,
    reachable,
    store_address,
)
from espnet_distopt.distributed.farewell import LEFT
from espnet_distopt.distributed.forks import private
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError

CONNECT = 5.0
"""The most seconds that a connection may take to be made."""

LOOK = 0.5
"""Seconds between two looks whether a wait has become pointless."""

CHUNK = 1 << 22
"""Bytes that are sent within `CONNECT` seconds, or the connection is broken."""

_SIZE = struct.Struct("<Q")
_TOKEN = 16


class Host:
    """Serves this learner's state to replacements of others.

    Cost: a look at a flag in each step; a copy of the state in the step that serves it.

    Args:
        liveness: who lives.
        watch: the training thread's connection to the store.
    """

    def __init__(self, liveness: Liveness, watch: Watch) -> None:
        self._asked = threading.Event()
        self._served: queue.Queue[memoryview] = queue.Queue()
        self._stop = threading.Event()
        self._listener = private(listen())
        self._listener.settimeout(LOOK)
        with watch.asking("publishing the port for replacements"):
            self._token = _token(watch)
            port = self._listener.getsockname()[1]
            address = own_address(port, store_address(watch.store))
            watch.store.set(_key(liveness, liveness.rank), address)
        self._thread = threading.Thread(
            target=self._serve, name="distopt-host", daemon=True
        )
        self._thread.start()

    def end_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write the state down at the end of a step, if a replacement has asked for it.

        Args:
            state: returns tensors, numbers, strings, lists and dicts.
        """
        if self._asked.is_set():
            self._asked.clear()
            buffer = io.BytesIO()
            torch.save(state(), buffer)
            self._served.put(buffer.getbuffer())

    def close(self) -> None:
        """Close the port: who waits asks another member."""
        self._stop.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):  # It has gone; there may be another.
                asking, _ = self._listener.accept()
                with private(asking):
                    self._answer(asking)

    def _answer(self, asking: socket.socket) -> None:
        asking.settimeout(CONNECT)
        if _received(asking, _TOKEN) != self._token:
            return
        self._asked.set()
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                state = self._served.get(timeout=LOOK)
                asking.sendall(_SIZE.pack(len(state)))
                for start in range(0, len(state), CHUNK):
                    asking.sendall(state[start : start + CHUNK])
                return


def fetch(liveness: Liveness, watch: Watch) -> dict[str, Any]:
    """Return the state of a member, for a replacement that is about to join.

    It asks the members in the order of their ranks, its neighbours first.

    Args:
        liveness: who lives.
        watch: the training thread's connection to the store.

    Raises:
        PeerLostError: the run has ended, or has ended for this learner.
    """
    while True:
        rank, size = liveness.rank, liveness.size
        watch.check("joining")
        with watch.asking("joining"):
            token = _token(watch)
            members = sorted(liveness.members.ranks, key=lambda r: (r - rank) % size)
            members = [each for each in members if each != rank]
            _refuse_if_over(liveness, members, watch)
            known = [r for r in members if watch.store.check([_key(liveness, r)])]
            addresses = [watch.store.get(_key(liveness, r)).decode() for r in known]
        for peer, address in zip(known, addresses, strict=True):
            with contextlib.suppress(OSError):
                state = _ask(liveness, watch, peer, reachable(address), token)
                return _loaded(state)
        liveness.pause()


def _loaded(state: bytearray) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(
        io.BytesIO(state), map_location="cpu", weights_only=True
    )
    return found


def _refuse_if_over(liveness: Liveness, members: list[int], watch: Watch) -> None:
    beats = [watch.store.get(liveness.beat_key(peer)) for peer in members]
    if all(bytes(beat) == LEFT for beat in beats):
        reason = "the others have ended their training, and nobody is left to join"
        raise PeerLostError(
            f"learner {liveness.rank}: joining has failed: {reason}", reason
        )


def _ask(
    liveness: Liveness, watch: Watch, peer: int, host: tuple[str, int], token: bytes
) -> bytearray:
    """Return the state of `peer`, however long its step takes.

    Raises:
        OSError: it has ended, or is no member any more.
    """
    with private(socket.create_connection(host, CONNECT)) as asking:
        asking.sendall(token)
        asking.settimeout(LOOK)

        def check() -> None:
            watch.check("joining")
            if peer not in liveness.members.ranks:
                raise ConnectionError(f"learner {peer} is lost")

        (size,) = _SIZE.unpack(_received(asking, _SIZE.size, check))
        return _received(asking, size, check)


def _received(
    connection: socket.socket, size: int, check: Callable[[], None] | None = None
) -> bytearray:
    """Return `size` bytes; with `check`, call that whenever none have come for long."""
    received = bytearray(size)
    left = memoryview(received)
    while left:
        try:
            count = connection.recv_into(left)
        except TimeoutError:
            if check is None:
                raise
            check()
            continue
        if count == 0:
            raise ConnectionResetError("the other end has closed the connection")
        left = left[count:]
    return received


def _key(liveness: Liveness, rank: int) -> str:
    return f"host/{rank}.{liveness.membership.incarnation(rank)}"


def _token(watch: Watch) -> bytes:
    """Return the secret of this run, by which strangers are told (`door`)."""
    return bytes(watch.store.get("token"))
