"""A replacement joins the members in the place of a learner that has died.

Ben replaces a learner that has died; Anna is a member.

    1. Anna listens on a port of its own for replacements, as every member does.
    2. Ben connects to Anna, and says who he is. At the end of her next step her
       training thread writes her state down, which takes a pass over it. A thread of
       its own sends it, while she trains on.
    3. Ben takes her state over, and enters the list of members.

What could go wrong, and what is done about it:

    If Anna has ended her epoch in step 2, Ben waits until she makes a step in the next.
    If she trains on in an epoch whose gossip is over, she tells him to come again
    later: he could not join before the next epoch, and her state would be old by then.

    If the gossip of the epoch has ended before step 3, Ben does all this once more in
    the next epoch.

    If Anna dies, or ends, Ben asks another member.
"""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from espnet_distopt.core.driver import JoinLater
from espnet_distopt.core.protocols import read_members
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.addresses import listen_for, reachable
from espnet_distopt.distributed.connections import private
from espnet_distopt.distributed.heartbeats import LEFT
from espnet_distopt.distributed.launcher import (
    announce_hopeless,
    announce_joined,
    survival_announced,
)
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.pairs import CONNECT, TOKEN, token_of
from espnet_distopt.distributed.state_transfer import (
    State,
    frozen,
    receive_bytes,
    receive_state,
    send_state,
)
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError

_log = logging.getLogger(__name__)

LATER: State = None
"""What a learner sends that cannot be joined in this epoch any more."""

LOOK = 0.5
"""Seconds between two looks whether a wait has become pointless."""


class StateServer:
    """Serves this learner's state to replacements of others.

    `over` returns whether the gossip of the epoch is over that is being trained. Cost:
    a look at a flag in each step; a copy of the state in the step that serves it.
    """

    def __init__(
        self, liveness: Liveness, watch: Watch, over: Callable[[], bool]
    ) -> None:
        self._over = over
        self._asked = threading.Event()
        self._served: queue.Queue[State] = queue.Queue()
        self._stop = threading.Event()
        self._listener, address = listen_for(watch.store)
        self._listener.settimeout(LOOK)
        with watch.asking("publishing the port for replacements"):
            self._token = token_of(watch)
            own = liveness.membership.name(liveness.rank)
            watch.store.set(keys.host(own), address)
        self._thread = threading.Thread(
            target=self._serve, name="distopt-state-server", daemon=True
        )
        self._thread.start()

    def end_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write the state down at the end of a step, if a replacement has asked for it.

        `state` returns tensors, numbers, strings, lists and dicts.
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
            try:
                asking, _ = self._listener.accept()
                with private(asking):
                    self._answer(asking)
            except OSError:  # It has gone; there may be another.
                continue
            except Exception:  # It cannot be served, and asks another member.
                _log.exception("a replacement of another learner was not served")

    def _answer(self, asking: socket.socket) -> None:
        asking.settimeout(CONNECT)
        if receive_bytes(asking, TOKEN) != self._token:
            return
        if self._over():
            send_state(asking, LATER)
            return
        self._asked.set()
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                send_state(asking, self._served.get(timeout=LOOK))
                return


def enter(
    liveness: Liveness, watch: Watch, take: Callable[[dict[str, Any]], None]
) -> State:
    """Join the members, and return the state of the one that was taken over.

    `take` takes over the entry "learner" of a member's state, at each attempt. If it
    raises `JoinLater`, this learner joins in the next epoch.

    Raises:
        PeerLostError: the others have ended, or give this learner up.
    """
    own = liveness.membership.name(liveness.rank)
    _refuse_before_begin(liveness)
    while True:
        state = _fetch(liveness, watch)
        try:
            take(state["learner"])
        except JoinLater:
            announce_joined(own)
            _await_next_epoch(liveness, watch, state["round"])
            continue
        liveness.membership.learn(state["incarnations"])
        with watch.asking("joining"):
            liveness.await_lease()
            joined = liveness.membership.join(watch.store, state["round"])
        announce_joined(own)
        if joined:
            return state


def _refuse_before_begin(liveness: Liveness) -> None:
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


def _fetch(liveness: Liveness, watch: Watch) -> State:
    """Return the state of a member that can be joined; the next neighbours come first.

    Raises:
        PeerLostError: the run has ended, or has ended for this learner.
    """
    while True:
        watch.check("joining")
        with watch.asking("joining"):
            token, members = token_of(watch), _others(liveness)
            _refuse_if_over(liveness, members, watch)
            hosts = {r: keys.host(liveness.membership.name(r)) for r in members}
            known = [r for r in members if watch.store.check([hosts[r]])]
            addresses = [watch.store.get(hosts[r]).decode() for r in known]
        waits = False
        for peer, address in zip(known, addresses, strict=True):
            try:
                state = _ask(liveness, watch, peer, reachable(address), token)
            except OSError as error:
                # There may be no member any more that would notice its death.
                liveness.suspect([peer], f"it does not hand over its state: {error}")
                continue
            if state is not LATER:
                return state
            waits = True
        if waits:
            announce_joined(liveness.membership.name(liveness.rank))
            liveness.wait_for_note(LOOK)
        liveness.pause()


def _await_next_epoch(liveness: Liveness, watch: Watch, epoch: int) -> None:
    """Wait until the gossip of an epoch is over, in which a replacement cannot join.

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
    names = map(liveness.membership.name, members)
    beats = [watch.store.get(keys.beat(name)) for name in names]
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
) -> State:
    """Return the state of `peer`, however long its step takes; or `LATER`.

    Raises:
        OSError: it has ended, or is no member any more.
    """
    with private(socket.create_connection(host, CONNECT)) as asking:
        asking.sendall(token)
        asking.settimeout(LOOK)

        def check() -> None:
            watch.check("joining")
            announce_joined(liveness.membership.name(liveness.rank))
            if peer not in liveness.members.ranks:
                raise ConnectionError(f"learner {peer} is lost")

        return receive_state(asking, check)
