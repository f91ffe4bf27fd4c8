"""Who is alive: heartbeats and last words in the rendezvous store.

A gloo operation cannot be polled or cancelled, and a wait that times out destroys its
group. So nobody waits on the network for a peer that may not come: learners meet, pair
and stop through the store, in short waits between which they look at each other's
heartbeats.
"""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, DistStoreError

Store = Any
"""A `torch.distributed.Store`, whose published types lack `clone` and bytes."""

SLICE = timedelta(seconds=1)
"""How long one wait on the store lasts before heartbeats are looked at."""


class PeerLostError(RuntimeError):
    """A learner has died, or has been silent for too long; the message names it.

    Attributes:
        reason: who is lost and why, without what this learner was doing.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class Liveness:
    """Heartbeat of this process, and what others are to know of its end.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner. size: number of learners.
        silence: seconds without a heartbeat after which a learner counts as lost.
    """

    def __init__(self, store: Store, rank: int, size: int, silence: float = 30) -> None:
        self.rank = rank
        self.others = [peer for peer in range(size) if peer != rank]
        self.silence = silence
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._beat,
            args=(store.clone(),),
            name="distopt-heartbeat",
            daemon=True,
        )
        self._thread.start()

    def _beat(self, store: Store) -> None:
        while not self._stop.wait(SLICE.total_seconds()):
            try:
                store.add(f"beat/{self.rank}", 1)
            except RuntimeError:
                return  # the store is gone; whoever waits on it will say so

    def stop(self) -> None:
        """End the heartbeat."""
        self._stop.set()
        self._thread.join(timeout=2 * SLICE.total_seconds())

    def last_words(self, message: str) -> None:
        """Tell the others why this learner is about to end, if they still listen."""
        try:
            self._store.compare_set("failed", "", message)
        except RuntimeError:
            return  # nobody is left to listen


class Watch:
    """One thread's view of the other learners, over a store connection of its own.

    Connections are made here and nowhere later: a lost store cannot be connected to.
    """

    def __init__(self, liveness: Liveness, store: Store) -> None:
        self.store = store.clone()
        self._liveness = liveness
        self._seen: dict[int, tuple[int, float]] = {}

    def check(self, peers: Sequence[int]) -> None:
        """Raise PeerLostError if one of `peers` is lost or any learner has failed."""
        try:
            if self.store.check(["failed"]):
                raise PeerLostError(self.store.get("failed").decode())
            beats = {peer: self.store.add(f"beat/{peer}", 0) for peer in peers}
        except DistError as error:
            raise _store_lost() from error
        now = time.monotonic()
        for peer in peers:
            seen, since = self._seen.get(peer, (None, now))
            if beats[peer] != seen:
                self._seen[peer] = (beats[peer], now)
            elif now - since > self._liveness.silence:
                raise PeerLostError(
                    f"learner {peer} has been silent for {now - since:.0f} s; its "
                    "process or its machine is gone: look at its log"
                )

    def wait_for(self, key: str, peers: Sequence[int]) -> bytes:
        """Wait for `key` of the store while every one of `peers` lives; return it.

        Raises:
            PeerLostError: one of them is lost, some learner has failed, or the process
                that keeps the store has.
        """
        self._seen.clear()
        while True:
            try:
                self.store.wait([key], SLICE)
                return bytes(self.store.get(key))
            except DistStoreError:
                self.check(peers)
            except DistError as error:
                raise _store_lost() from error

    def explain(self, error: RuntimeError, what: str) -> PeerLostError:
        """Find out who is lost after a network operation has failed.

        A process that died closes its connections at once, but is silent only after a
        while: this waits for as long as it takes to tell.
        """
        self._seen.clear()
        reason = f"nobody is silent; the network said: {error}"
        deadline = time.monotonic() + self._liveness.silence + 5
        while time.monotonic() < deadline:
            try:
                self.check(self._liveness.others)
            except PeerLostError as lost:
                reason = lost.reason
                break
            time.sleep(0.2)
        message = f"learner {self._liveness.rank}: {what} has failed: {reason}"
        return PeerLostError(message, reason)


def _store_lost() -> PeerLostError:
    return PeerLostError(
        "the rendezvous store is gone: the process that keeps it (learner 0, or "
        "the launcher) has died"
    )
