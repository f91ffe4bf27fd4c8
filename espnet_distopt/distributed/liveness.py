"""Who is alive: heartbeats and last words in the rendezvous store.

Each learner has a heartbeat thread. Once a second it counts up its own key of the store
and reads those of all others in one operation. A learner whose count stands still for
`silence` seconds is lost, and so is the store when it does not answer for as long; a
second thread, which asks nobody, watches over that. A learner that fails leaves its
last words in the store.

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
"""Seconds by which this process's own clock may jump: more, and it was stopped itself,
so that it cannot know who has been silent meanwhile."""

LINGER = 5.0
"""Seconds for which a learner that fails keeps the store for others to read why."""

START = 1800.0
"""Seconds for which one waits for a learner that has not begun its session."""

_LEFT = b"left"


class Liveness:
    """Heartbeat of this process, and what it knows of the others'.

    Cost: two store operations a second; the second one reads N + 1 short values.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner. size: number of learners.
        silence: seconds without a heartbeat after which a learner counts as lost.

    Attributes:
        connections: of the driver; they are severed when a learner is lost.
        store_waits: the connections to the store on which somebody waits right now.
        lost: who is lost and why; None as long as nobody is.
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
        """Count up, and look at the others, once a second."""
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
        """Read what the others have written."""
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
        """Note who has been silent for too long; ask nobody, for nobody may answer."""
        last = time.monotonic()
        while not self._stop.wait(BEAT / 2):
            if self.lost is not None:
                self._end_waits()  # one may have begun just now
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
                    self._note(self._how(peer, now - since))
            if not self._all_began and now - self._began > START:
                self._note(f"others have not begun their sessions for {START:.0f} s")

    def _matters(self, peer: int) -> bool:
        """Whether a learner's silence is a loss; one that has left may be silent."""
        return self._counts[peer] != _LEFT or bool(self.store_waits)

    def _how(self, peer: int, seconds: float) -> str:
        if self._counts[peer] == _LEFT:
            return f"learner {peer} has left the session {seconds:.0f} s ago"
        return (
            f"learner {peer} has been silent for {seconds:.0f} s; its process or its "
            "machine is gone or does not respond: look at its log"
        )

    def _note(self, reason: str) -> None:
        """Note the first reason, and end every wait."""
        if self.lost is None:
            self.lost = reason
            self._noted.set()
            self._end_waits()

    def _end_waits(self) -> None:
        self.connections.sever()
        for wait in tuple(self.store_waits):
            wait.sever()

    def wait_for_note(self, seconds: float) -> str | None:
        """Return who is lost and why, as soon as it is known; None: nobody is."""
        self._noted.wait(seconds)
        return self.lost

    @contextmanager
    def waiting(self, store: Connections) -> Generator[None, None, None]:
        """Inside, this learner waits for others: one that has left will not come.

        Args:
            store: the connection to the store of the thread that waits.
        """
        self.store_waits.append(store)
        try:
            yield
        finally:
            self.store_waits.remove(store)

    def leave(self, why: str | None = None) -> None:
        """End the heartbeat; tell the others `why`, if this learner has failed.

        The process that keeps the store goes last, or others could not leave.
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
            return  # the store is gone, and nobody is left to read it

    def _wait_for_leavers(self, seconds: float | None) -> None:
        """Wait until the others have left, are silent, or `seconds` have passed."""
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
    """Return where the store listens; None: it is not reached by TCP."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port: int | None = getattr(store, "port", None)
    return port
