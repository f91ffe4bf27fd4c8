"""A replacement takes over the state of a member, which trains on meanwhile.

Every learner that can be joined listens on a port of its own. A replacement, Ben,
connects to a member, Anna, and says who he is. At the end of her next step Anna's
training thread writes her state down, which takes a pass over it; a thread of her own
sends it. If she has ended her epoch, Ben waits until she makes a step in the next one.
"""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from espnet_distopt.distributed.addresses import (
    listen,
    own_address,
    reachable,
    store_address,
)
from espnet_distopt.distributed.door import CONNECT, TOKEN, token_of
from espnet_distopt.distributed.farewell import LEFT
from espnet_distopt.distributed.forks import private
from espnet_distopt.distributed.launcher import announce_hopeless, survival_announced
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.membership import read_members
from espnet_distopt.distributed.state_transfer import (
    State,
    frozen,
    receive_bytes,
    receive_state,
    send_state,
)
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError

LOOK = 0.5
"""Seconds between two looks whether a wait has become pointless."""


class Host:
    """Serves this learner's state to replacements of others.

    Cost: a look at a flag in each step; a copy of the state in the step that serves it.

    Args:
        liveness: who lives.
        watch: the training thread's connection to the store.
    """

    def __init__(self, liveness: Liveness, watch: Watch) -> None:
        self._asked = threading.Event()
        self._served: queue.Queue[State] = queue.Queue()
        self._stop = threading.Event()
        self._listener = private(listen())
        self._listener.settimeout(LOOK)
        with watch.asking("publishing the port for replacements"):
            self._token = token_of(watch)
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
            self._served.put(frozen(state()))

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
        if receive_bytes(asking, TOKEN) != self._token:
            return
        self._asked.set()
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                send_state(asking, self._served.get(timeout=LOOK))
                return


def refuse_before_begin(liveness: Liveness) -> None:
    """Refuse to join learners that have not begun their first session.

    They never will: each has met the dead learner in the process group, or waits for it
    there.

    Raises:
        PeerLostError: no learner has begun.
    """
    if not survival_announced():
        rank = liveness.rank
        reason = f"learner {rank} has died before the learners had begun their session"
        announce_hopeless(reason)
        raise PeerLostError(f"learner {rank}: joining has failed: {reason}", reason)


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
        watch.check("joining")
        with watch.asking("joining"):
            token, members = token_of(watch), _others(liveness)
            _refuse_if_over(liveness, members, watch)
            known = [r for r in members if watch.store.check([_key(liveness, r)])]
            addresses = [watch.store.get(_key(liveness, r)).decode() for r in known]
        for peer, address in zip(known, addresses, strict=True):
            try:
                return _ask(liveness, watch, peer, reachable(address), token)
            except OSError as error:
                # There may be no member any more that would notice its death.
                liveness.suspect([peer], f"it does not hand over its state: {error}")
        liveness.pause()


def await_next_epoch(liveness: Liveness, watch: Watch, epoch: int) -> None:
    """Wait until the gossip of an epoch is over, in which a replacement cannot join.

    Args:
        liveness: who lives.
        watch: the training thread's connection to the store.
        epoch: the number of the gossip's epoch.

    Raises:
        PeerLostError: the run has ended, or has ended for this learner.
    """
    over = False
    while not over:
        watch.check("joining")
        liveness.pause()
        with watch.asking("joining"):
            _refuse_if_over(liveness, _others(liveness), watch)
            over = read_members(watch.store).over >= epoch


def _others(liveness: Liveness) -> list[int]:
    """Return the members, from this learner's next neighbour on."""
    rank, size = liveness.rank, liveness.size
    members = sorted(liveness.members.ranks, key=lambda r: (r - rank) % size)
    return [each for each in members if each != rank]


def _refuse_if_over(liveness: Liveness, members: list[int], watch: Watch) -> None:
    beats = [watch.store.get(liveness.beat_key(peer)) for peer in members]
    if any(bytes(beat) != LEFT for beat in beats):
        return
    reason = "the others have ended their training, and nobody is left to join"
    if not members:
        reason = "all learners have died, and nobody is left to join"
        announce_hopeless(reason)
    raise PeerLostError(
        f"learner {liveness.rank}: joining has failed: {reason}", reason
    )


def _ask(
    liveness: Liveness, watch: Watch, peer: int, host: tuple[str, int], token: bytes
) -> dict[str, Any]:
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

        state: dict[str, Any] = receive_state(asking, check)
        return state


def _key(liveness: Liveness, rank: int) -> str:
    return f"host/{rank}.{liveness.membership.incarnation(rank)}"
