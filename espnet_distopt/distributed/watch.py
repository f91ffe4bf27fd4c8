"""One thread's view of the store and of those who are lost.

Nobody waits with a time limit: `liveness` ends a wait when a learner is lost, and what
the wait then raises is turned into an error that names the learner.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import DistStoreError

from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.liveness import Liveness, Store, store_port
from espnet_distopt.errors import PeerLostError

_LONG = timedelta(days=1)
_SLICE = timedelta(seconds=1)


class Watch:
    """One thread's connection to the store, and what it says when others are lost.

    Connections are made here and nowhere later: a lost store cannot be connected to.

    Attributes:
        store: for the calling thread.
        liveness: of this process.
    """

    def __init__(self, liveness: Liveness, store: Store) -> None:
        self.liveness = liveness
        self._connection = Connections()
        with self._connection.opening():
            self.store = store.clone()
        # Only a connection can be severed: other stores are asked again and again.
        self._slice = _SLICE if store_port(store) is None else _LONG

    def wait_for(self, key: str, what: str) -> bytes:
        """Wait for `key` of the store, however long it takes, while all live.

        Args:
            key: of the store.
            what: is under way, for the message.

        Raises:
            PeerLostError: a learner is lost, or the store.
        """
        with self.asking(what):
            interruptibly(lambda: self._wait(key))
            return bytes(self.store.get(key))

    def _wait(self, key: str) -> None:
        while self.liveness.lost is None:
            try:
                self.store.wait([key], self._slice)
                return
            except DistStoreError:
                continue
        raise RuntimeError(self.liveness.lost)

    @contextmanager
    def asking(self, what: str) -> Generator[None, None, None]:
        """Inside, the store or the network is asked for `what` is under way.

        Raises:
            PeerLostError: a learner is lost, or the store.
        """
        try:
            with self.liveness.waiting(self._connection):
                yield
        except PeerLostError:
            raise
        except RuntimeError as error:
            raise self.explain(error, what) from error

    def explain(self, error: RuntimeError, what: str) -> RuntimeError:
        """Return what to raise after an operation has failed: who is lost, and why.

        A process that died closes its connections at once, but is silent only after a
        while: this waits for as long as it takes to tell. An error that is not of the
        network is returned as it is, with what was under way.
        """
        rank, live = self.liveness.rank, self.liveness
        if live.lost is None and not _of_network(error):
            return RuntimeError(f"learner {rank}: {what} has failed: {error}")
        reason = live.wait_for_note(live.silence + 5)
        reason = reason or f"nobody is silent; the network said: {error}"
        return PeerLostError(f"learner {rank}: {what} has failed: {reason}", reason)


def interruptibly(call: Callable[[], None]) -> None:
    """Call, on the main thread so that signals are handled while it waits.

    Python runs signal handlers on the main thread between two of its own instructions,
    and a wait in the store is one long foreign instruction.
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


def _of_network(error: RuntimeError) -> bool:
    """Whether an error is of a connection rather than of what was to be sent."""
    words = "onnect", "NCCL", "time", "close", "reset", "ocket", "pipe", "recv", "send"
    return any(word in str(error) for word in words)
