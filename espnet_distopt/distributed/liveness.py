"""Liveness: learners notice through heartbeats in the rendezvous store who is lost.

Each learner has a heartbeat thread. Every half second it counts up its own key of the
store, reads those of all others, and judges who of them is lost (`lookout`). The store
is lost if it does not answer for `silence` seconds; a second thread notices that,
because it never waits for the store.

A learner may change what others have only while it has a lease: its last heartbeat is
younger than `silence`. The others cannot have given it up before, for silence at least.
"""

import threading
import time
from collections.abc import Iterable
from typing import Any

from espnet_distopt.distributed.bell import Bells
from espnet_distopt.distributed.connections import keeps_store
from espnet_distopt.distributed.farewell import LEFT, wait_for_leavers
from espnet_distopt.distributed.launcher import announce_end
from espnet_distopt.distributed.lookout import Lookout
from espnet_distopt.distributed.suspects import PROBE

Store = Any
"""A `torch.distributed.Store`, whose published types lack `clone` and bytes."""

BEAT = 0.5
"""Seconds between two heartbeats."""

LATE = 5.0
"""Seconds by which a thread may wake up too late; half of `silence`, if that is less.
If it is later, this process was stopped itself, and cannot know which learners were
silent meanwhile."""

LINGER = 5.0
"""Seconds for which a failing learner keeps the store, so that others read why."""

START = 1800.0
"""Seconds for which learners wait for one that has not begun its session."""


class Liveness(Lookout):
    """The heartbeat of this process, and its knowledge of which learners are lost.

    Cost: four store operations a second; half of them read N + 2 short values.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner's rank.
        size: number of places, N.
        silence: seconds without a heartbeat after which a learner counts as lost.
        incarnation: how often a learner of this rank was started before.
        bells: where processes are asked for; None makes a bell for this one.

    Attributes:
        rank, size, silence, membership, listeners: those of `Lookout`.
        port, connections, store_waits, alarms, lost: those of `Ending`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        silence: float = 30,
        incarnation: int = 0,
        bells: Bells | None = None,
    ) -> None:
        super().__init__(store, rank, size, silence, incarnation, bells)
        self._began = self._answered
        self._late = min(LATE, self.silence / 2) + BEAT
        self._nudged = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"distopt-{name}", daemon=True)
            for name, work in (("heartbeat", self._beat), ("alarm", self._guard))
        ]
        for thread in self._threads:
            thread.start()

    # The lease

    def has_lease(self) -> bool:
        """Return whether the others cannot have given this learner up for silence."""
        return time.monotonic() - self._lease < self.silence

    def await_lease(self) -> None:
        """Wait for a heartbeat, if the last one is too old.

        Raises:
            RuntimeError: the run ends for this learner, or it has left.
        """
        while not self.has_lease() and self.lost is None:
            if self._stop.is_set():
                raise RuntimeError("this learner has left the session")
            self.pause()
        if self.lost is not None:
            raise RuntimeError(self.lost)

    def await_version(self, version: int) -> None:
        """Wait until this process knows of members that another one has seen."""
        while self.members.version < version and self.lost is None:
            self._nudged.set()
            self.pause()

    # The heartbeat's thread

    def _beat(self) -> None:
        """Count, and read what others have written, until this learner leaves."""
        count, last = 0, time.monotonic()
        while not self._stop.is_set():
            self._nudged.wait(PROBE if self._beats.suspects else BEAT)
            self._nudged.clear()
            if self._stop.is_set():  # What comes after one has left is not one's loss.
                return
            self._bell.answer()
            begin = time.monotonic()
            count += 1
            try:
                self._store.set(self.beat_key(self.rank), str(count))
                self._look(begin)
                if time.monotonic() - last > self._late:
                    self._beats.begin_anew(time.monotonic())
                last = time.monotonic()
                self._judge(last)
            except RuntimeError:
                if not self._stop.is_set():
                    self.note(_STORE_GONE)
                return

    # The alarm's thread

    def _guard(self) -> None:
        """Note a store that has been silent for too long, or learners that do not come.

        This thread does not use the store, because the store may not answer.
        """
        last = time.monotonic()
        while not self._stop.wait(min(BEAT, 0.5)):
            if self.lost is not None:
                self.end_waits()  # A wait may have begun since the last look.
                continue
            now = time.monotonic()
            if now - last > self._late:
                self._answered = now
            last = now
            if now - self._answered > self.silence:
                self.note(f"{_STORE_SILENT} for {now - self._answered:.0f} s")
                self._connection.sever()
            if not self._all_began and now - self._began > START:
                self.note(f"others have not begun their sessions for {START:.0f} s")

    # All threads

    def suspect(self, peers: Iterable[int], why: str) -> None:
        """Find out soon whether learners have died: a connection to one has failed.

        Args:
            peers: their ranks.
            why: what has happened, in words.
        """
        self._beats.suspect((peer for peer in peers if peer != self.rank), why)
        self._nudged.set()

    def suspects(self, peers: Iterable[int]) -> bool:
        """Return whether it is still open if any of `peers` has died."""
        return not self._beats.suspects.keys().isdisjoint(peers)

    def leave(
        self, why: str | None = None, alone: bool = False, faulty: bool = True
    ) -> None:
        """End the heartbeat, and tell the others why if this learner has failed.

        The process that keeps the store leaves last, because the others need the store
        to leave. No thread is left in the store: Python aborts a process in which one
        comes back from there after the end of the main thread.

        Args:
            why: the reason of the failure, in words; None if this learner ends well.
            alone: whether the others go on after a failure, if the algorithm survives
                and nothing else has ended the run.
            faulty: whether it was this learner's own program that failed; the launcher
                is told.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._nudged.set()
        in_time = LINGER if why is not None or self.lost is not None else None
        farewell = threading.Thread(
            target=self._say_goodbye, args=(why, alone, faulty), daemon=True
        )
        farewell.start()
        farewell.join(self.silence)
        if farewell.is_alive():  # The store is lost.
            self._connection.sever()
            farewell.join(LATE)
        if keeps_store(self.port):
            others = {
                p: self.beat_key(p) for p in self._others if p in self.members.ranks
            }
            wait_for_leavers(self._store, others, self.silence, in_time)

    def _say_goodbye(self, why: str | None, alone: bool, faulty: bool) -> None:
        for thread in self._threads:
            thread.join()
        try:
            if why is not None:
                go_on = self._leave_others(why, alone)
                what = why.removeprefix(f"learner {self.rank} ended with ")
                announce_end(self._store, self.rank, go_on and not faulty, what)
            if not self.membership.joining:
                self._store.set(self.beat_key(self.rank), LEFT)
        except RuntimeError:
            return  # The store is gone, so that no learner can read it any more.

    def _leave_others(self, why: str, alone: bool) -> bool:
        """Leave the members, or end the run for all.

        Returns whether the others go on.
        """
        if self.membership.joining:
            return True  # It has no part in the training.
        if alone and self._lost_with is not None and not self._store.get("failed"):
            self.membership.remove(self._store, self._lost_with(self.rank), why)
            return True
        self._store.compare_set("failed", "", why)
        return False


_STORE_GONE = (
    "the rendezvous store is gone: the process that keeps it (learner 0, or the "
    "launcher) has died"
)
_STORE_SILENT = (
    "the process that keeps the rendezvous store (learner 0, or the launcher) has not "
    "answered"
)
