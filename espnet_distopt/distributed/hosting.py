"""A replacement takes over the state of a member, which trains on meanwhile.

Every learner that can be joined listens on a port of its own. A replacement, Ben,
connects to a member, Anna, and says who he is. At the end of her next step Anna's
training thread writes her state down, which takes a pass over it; a thread of her own
sends it. If she has ended her epoch, Ben waits until she makes a step in the next one.
If she trains on in an epoch whose gossip is over, she tells him to come again later: he
could not join before the next epoch, and her state would be old by then.
"""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from espnet_distopt.distributed.addresses import listen_for
from espnet_distopt.distributed.door import CONNECT, TOKEN, token_of
from espnet_distopt.distributed.forks import private
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.state_transfer import (
    State,
    frozen,
    receive_bytes,
    send_state,
)
from espnet_distopt.distributed.watch import Watch

_log = logging.getLogger(__name__)

LATER: State = None
"""What a learner sends that cannot be joined in this epoch any more."""

LOOK = 0.5
"""Seconds between two looks whether a wait has become pointless."""


class Host:
    """Serves this learner's state to replacements of others.

    Cost: a look at a flag in each step; a copy of the state in the step that serves it.

    Args:
        liveness: knows which learners live.
        watch: the training thread's connection to the store.
        over: returns whether the gossip of the epoch is over that is being trained.
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
            watch.store.set(host_key(liveness, liveness.rank), address)
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


def host_key(liveness: Liveness, rank: int) -> str:
    """Return the key of the address at which a learner serves its state."""
    return f"host/{rank}.{liveness.membership.incarnation(rank)}"
