"""One thread's connection to the rendezvous store, and its errors of lost learners.

No wait has a time limit. When a learner is lost, `liveness` severs the connections, so
that the wait raises an error of the network. `Watch` turns that error into a
`PeerLostError` that names the learner.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta

from espnet_distopt.distributed.addresses import store_address
from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.heartbeats import LOOKS, PROBE
from espnet_distopt.distributed.liveness import Liveness, Store
from espnet_distopt.errors import PeerLostError, message

FOUND_OUT = 2 * LOOKS * PROBE
"""Seconds after which it is known who of those suspected has died."""

_LONG = timedelta(days=1)
"""The time limit of a wait that can be severed."""

_SLICE = timedelta(seconds=1)
"""The time limit of a wait that cannot be severed, and so is repeated."""


class Watch:
    """One thread's connection to the store, which explains errors of lost learners.

    Attributes:
        store: the thread's own connection to the store.
        liveness: the process's knowledge of which learners are lost.
    """

    def __init__(self, liveness: Liveness, store: Store) -> None:
        self.liveness = liveness
        # It is made now and never later: nothing can connect to a store that is lost.
        self._connection = Connections(liveness.port)
        with self._connection.opening():
            self.store = store.clone()
        # Only a TCP connection can be severed; a wait in another store is repeated.
        self._slice = _SLICE if store_address(store) is None else _LONG

    def wait_for(self, key: str, what: str) -> bytes:
        """Wait until the store has `key`, and return its value.

        Raises:
            PeerLostError: a learner is lost, or the store is, while `what` was under
                way.
        """
        with self.asking(what):
            interruptibly(lambda: self._wait(key))
            return bytes(self.store.get(key))

    def _wait(self, key: str) -> None:
        while self.liveness.lost is None:
            try:
                self.store.wait([key], self._slice)
                return
            except RuntimeError as error:
                # A file store raises no DistStoreError when its time is over.
                if "Wait timeout" not in str(error):
                    raise
        raise RuntimeError(self.liveness.lost)

    def check(self, what: str) -> None:
        """Raise PeerLostError if the run has ended for this learner."""
        if self.liveness.lost is not None:
            raise explain(self.liveness, RuntimeError(self.liveness.lost), what)

    @contextmanager
    def asking(self, what: str) -> Generator[None, None, None]:
        """Explain errors of the store and the network that are raised inside.

        Raises:
            PeerLostError: a learner is lost, or the store is, while `what` was under
                way.
        """
        try:
            with self.liveness.waiting(self._connection):
                yield
        except PeerLostError:
            raise
        except RuntimeError as error:
            raise explain(self.liveness, error, what) from error


def explain(liveness: Liveness, error: RuntimeError, what: str) -> RuntimeError:
    """Return the error to raise after an operation has failed.

    If the error is one of the network, that is a `PeerLostError`, which says who is
    lost and why. When a process dies, its connections are closed at once, and so
    all others are suspected of having died, and this waits for what comes of it.
    Another error is returned as a `RuntimeError` that says `what` was under way.
    """
    failed = f"learner {liveness.rank}: {what} has failed"
    if liveness.lost is None and not of_network(error):
        return RuntimeError(f"{failed}: {message(error)}")
    liveness.suspect(range(liveness.size), f"the network said: {message(error)}")
    reason = liveness.wait_for_note(FOUND_OUT)
    if reason is None:
        # The others are told the reason, and have to know whose error it was.
        reason = f"{failed}: nobody is silent; the network said: {message(error)}"
        return PeerLostError(reason, reason)
    return PeerLostError(f"{failed}: {reason}", reason)


def interruptibly(call: Callable[[], None]) -> None:
    """Call `call` so that signals are handled while it waits.

    Python runs signal handlers on the main thread, between two of its own instructions,
    and a wait in the store is a single call of foreign code. So the main thread has
    another thread call it, and waits for that thread in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    failures: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)
        done.set()

    threading.Thread(target=run, name="distopt-wait", daemon=True).start()
    done.wait()
    if failures:
        raise failures[0]


def of_network(error: RuntimeError) -> bool:
    """Return whether an error is of the connection, not of the tensor to be sent."""
    return any(word in message(error) for word in _OF_NETWORK)


_OF_NETWORK = (
    *("onnect", "NCCL", "close", "reset", "ocket", "pipe", "recv", "send"),
    *("imeout", "imed out", "ime out"),  # "time" alone is in "runtime", too.
)
