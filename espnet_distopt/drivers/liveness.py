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

from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]

Store = Any
"""A `torch.distributed.Store`, whose published types lack `clone` and bytes."""

SLICE = timedelta(seconds=1)
"""How long one wait on the store lasts before heartbeats are looked at."""


def prefixed(prefix: str, store: Store) -> Store:
    """Return a view of `store` under `prefix`, with a connection of its own."""
    return PrefixStore(prefix, store.clone())


class PeerLostError(RuntimeError):
    """A learner has died, or has been silent for too long; the message names it.

    Attributes:
        reason: who is lost and why, without what this learner was doing.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class Liveness:
    """Heartbeat of this process, and a watch over those of the others.

    Args:
        store: the store of all learners; each thread gets a clone of its own.
        rank: this learner. size: number of learners.
        silence: seconds without a heartbeat after which a learner counts as lost.
    """

    def __init__(self, store: Store, rank: int, size: int, silence: float = 30) -> None:
        self.rank = rank
        self.size = size
        self.silence = silence
        self._store = store
        self._stop = threading.Event()
        beating = store.clone()
        self._thread = threading.Thread(
            target=self._beat, args=(beating,), name="distopt-heartbeat", daemon=True
        )
        self._thread.start()

    def _beat(self, store: Store) -> None:
        while not self._stop.wait(SLICE.total_seconds()):
            try:
                store.add(f"beat/{self.rank}", 1)
            except RuntimeError:
                return  # the store's host is gone; whoever waits on it will say so

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

    def explain(self, error: RuntimeError, what: str) -> PeerLostError:
        """Find out who is lost after a network operation has failed.

        A process that died closes its connections at once, but is silent only after a
        while: this waits for as long as it takes to tell.
        """
        watch = self.watch()
        others = [rank for rank in range(self.size) if rank != self.rank]
        reason = f"nobody is silent; the network said: {error}"
        deadline = time.monotonic() + self.silence + 5
        while time.monotonic() < deadline:
            try:
                watch.check(others)
            except PeerLostError as lost:
                reason = lost.reason
                break
            except RuntimeError as unreachable:
                reason = f"the rendezvous store is gone, too: {unreachable}"
                break
            time.sleep(0.2)
        message = f"learner {self.rank}: {what} has failed: {reason}"
        return PeerLostError(message, reason)

    def watch(self) -> "Watch":
        """Return a watch for one waiting thread, with a store connection of its own."""
        return Watch(self._store.clone(), self.silence)


class Watch:
    """One waiting thread's view of the others' heartbeats."""

    def __init__(self, store: Store, silence: float) -> None:
        self._store = store
        self._silence = silence
        self._seen: dict[int, tuple[int, float]] = {}

    def check(self, peers: Sequence[int]) -> None:
        """Raise PeerLostError if one of `peers` is lost or any learner has failed."""
        if self._store.check(["failed"]):
            raise PeerLostError(self._store.get("failed").decode())
        now = time.monotonic()
        for peer in peers:
            beats = self._store.add(f"beat/{peer}", 0)
            seen, since = self._seen.get(peer, (None, now))
            if beats != seen:
                self._seen[peer] = (beats, now)
            elif now - since > self._silence:
                raise PeerLostError(
                    f"learner {peer} has been silent for {now - since:.0f} s; its "
                    "process or its machine is gone: look at its log"
                )

    def wait_for(self, store: Store, key: str, peers: Sequence[int]) -> bytes:
        """Wait for `key` of `store` while every one of `peers` lives; return it."""
        self._seen.clear()
        while True:
            try:
                store.wait([key], SLICE)
            except DistStoreError:
                self.check(peers)
            else:
                return bytes(store.get(key))
