"""Liveness: learners notice through heartbeats in the rendezvous store who is lost.

Each learner has a heartbeat thread. Once a second it counts up its own key of the store
and reads those of all others in one operation. A learner whose count stands still for
`silence` seconds is lost. The store is lost if it does not answer for as long; a second
thread notices that, because it never waits for the store. A learner that fails writes
the reason to the store before it ends.

What a learner does when another is lost, with learners A and B as an example:

    A waits in an all-reduce; B's process is stopped, and its connections stay open.
    A's heartbeat thread sees B's count stand still, and after 30 s notes that B is
        lost. It severs A's connections (`connections`).
    A's all-reduce raises an error of the network. `watch.Watch` looks at the note,
        and A raises `PeerLostError`, which names B.

If B's process dies instead, its connections are closed, A's all-reduce raises at once,
and `watch.Watch` waits for the note.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from espnet_distopt.distributed.connections import Connections, keeps_store

Store = Any
"""A `torch.distributed.Store`, whose published types lack `clone` and bytes."""

BEAT = 1.0
"""Seconds between two heartbeats."""

LATE = 5.0
"""Seconds by which the alarm thread may wake up too late. If it is later, this process
was stopped itself, and cannot know which learners were silent meanwhile."""

LINGER = 5.0
"""Seconds for which a failing learner keeps the store, so that others read why."""

START = 1800.0
"""Seconds for which learners wait for one that has not begun its session."""

_LEFT = b"left"
"""The heartbeat count of a learner that has left the session."""


class Liveness:
    """The heartbeat of this process, and its knowledge of which learners are lost.

    Cost: two store operations a second; the second one reads N + 1 short values.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner's rank.
        size: number of learners, N.
        silence: seconds without a heartbeat after which a learner counts as lost.

    Attributes:
        connections: the driver's connections, which are severed when a learner is lost.
        store_waits: the connections to the store on which threads are waiting now.
        lost: which learner is lost and why, in words; None as long as none is.
    """

    def __init__(self, store: Store, rank: int, size: int, silence: float = 30) -> None:
        self.rank, self.size, self.silence = rank, size, silence
        self.lost: str | None = None
        self._port = store_port(store)
        self.connections = Connections(self._port)
        self.store_waits: list[Connections] = []
        self._store = store.clone()
        self._store.compare_set("failed", "", "")
        self._store.set(self._key(rank), "0")
        self._others = [peer for peer in range(size) if peer != rank]
        self._counts: dict[int, bytes] = {}
        self._seen: dict[int, float] = {}
        self._all_began = False
        self._began = self._answered = time.monotonic()
        self._noted = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"distopt-{name}", daemon=True)
            for name, work in (("heartbeat", self._beat), ("alarm", self._guard))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _key(rank: int) -> str:
        return f"beat/{rank}"

    def _beat(self) -> None:
        """Once a second, write this learner's count and read those of the others."""
        count = 0
        while not self._stop.wait(BEAT):
            count += 1
            try:
                self._store.set(self._key(self.rank), str(count))
                self._look()
            except RuntimeError:
                if not self._stop.is_set():
                    self._note(_STORE_GONE)
                return

    def _look(self) -> None:
        """Read the counts of the others, and the reason if a learner has failed."""
        keys = [self._key(peer) for peer in self._others]
        if not self._all_began and not self._store.check(keys):
            keys = []
        self._all_began = bool(keys)
        failed, *counts = self._store.multi_get(["failed", *keys])
        self._answered = now = time.monotonic()
        if failed:
            reason = bytes(failed).decode()
            given_up = reason.startswith(f"learner {self.rank} has been silent")
            story = "the others have given this learner up: " if given_up else ""
            self._note(story + reason)
        for peer, count in zip(self._others, counts, strict=False):
            if self._counts.get(peer) != count:
                self._counts[peer], self._seen[peer] = bytes(count), now

    def _guard(self) -> None:
        """Note a learner that has been silent for too long, or the store.

        This thread does not use the store, because the store may not answer.
        """
        last = time.monotonic()
        while not self._stop.wait(BEAT / 2):
            if self.lost is not None:
                self._end_waits()  # A wait may have begun since the last look.
                continue
            now = time.monotonic()
            if now - last > LATE + BEAT:
                self._seen = dict.fromkeys(self._seen, now)
                self._answered = now
            last = now
            if now - self._answered > self.silence:
                self._note(f"{_STORE_SILENT} for {now - self._answered:.0f} s")
            for peer, since in tuple(self._seen.items()):
                if now - since > self.silence and self._matters(peer):
                    self._note(self._describe_silence(peer, now - since))
            if not self._all_began and now - self._began > START:
                self._note(f"others have not begun their sessions for {START:.0f} s")

    def _matters(self, peer: int) -> bool:
        """Return whether a silent learner is lost.

        One that has left may be silent, unless a thread is waiting in the store now.
        """
        return self._counts[peer] != _LEFT or bool(self.store_waits)

    def _describe_silence(self, peer: int, seconds: float) -> str:
        if self._counts[peer] == _LEFT:
            return f"learner {peer} has left the session {seconds:.0f} s ago"
        return (
            f"learner {peer} has been silent for {seconds:.0f} s; its process or its "
            "machine is gone or does not respond: look at its log"
        )

    def _note(self, reason: str) -> None:
        """Note the reason, unless there is an earlier one, and end every wait."""
        if self.lost is None:
            self.lost = reason
            self._noted.set()
            self._end_waits()

    def _end_waits(self) -> None:
        self.connections.sever()
        for wait in tuple(self.store_waits):
            wait.sever()

    def wait_for_note(self, seconds: float) -> str | None:
        """Return who is lost and why, as soon as that is known.

        Returns None if no learner is lost after `seconds`.
        """
        self._noted.wait(seconds)
        return self.lost

    @contextmanager
    def waiting(self, store: Connections) -> Generator[None, None, None]:
        """Mark this learner as waiting for others in the store, inside.

        Meanwhile a learner that has left counts as lost, because it will not come.

        Args:
            store: the waiting thread's connection to the store.
        """
        self.store_waits.append(store)
        try:
            yield
        finally:
            self.store_waits.remove(store)

    def leave(self, why: str | None = None) -> None:
        """End the heartbeat, and tell the others why if this learner has failed.

        The process that keeps the store leaves last, because the others need the store
        to leave.

        Args:
            why: the reason of the failure, in words; None if this learner ends well.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        in_time = LINGER if why is not None or self.lost is not None else None
        farewell = threading.Thread(target=self._say_goodbye, args=(why,), daemon=True)
        farewell.start()
        farewell.join(2 * BEAT)
        if keeps_store(self._port):
            self._wait_for_leavers(in_time)

    def _say_goodbye(self, why: str | None) -> None:
        for thread in self._threads:
            thread.join()
        try:
            if why is not None:
                self._store.compare_set("failed", "", why)
            self._store.set(self._key(self.rank), _LEFT)
        except RuntimeError:
            return  # The store is gone, so that no learner can read it any more.

    def _wait_for_leavers(self, seconds: float | None) -> None:
        """Wait until the others have left or are silent, at most for `seconds`."""
        begin = time.monotonic()
        staying = dict.fromkeys(self._others, (b"", begin))
        while staying and (seconds is None or time.monotonic() - begin < seconds):
            counts = self._store.multi_get([self._key(peer) for peer in staying])
            now = time.monotonic()
            for peer, count in zip(tuple(staying), counts, strict=True):
                before, since = staying[peer]
                if bytes(count) == _LEFT or now - since > self.silence:
                    del staying[peer]
                elif bytes(count) != before:
                    staying[peer] = bytes(count), now
            time.sleep(0.005)


_STORE_GONE = (
    "the rendezvous store is gone: the process that keeps it (learner 0, or the "
    "launcher) has died"
)
_STORE_SILENT = (
    "the process that keeps the rendezvous store (learner 0, or the launcher) has not "
    "answered"
)


def store_port(store: Store) -> int | None:
    """Return the port at which the store listens; None if it is not a TCP store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port: int | None = getattr(store, "port", None)
    return port
