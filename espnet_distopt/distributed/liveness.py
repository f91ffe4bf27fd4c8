"""Liveness: learners notice through heartbeats in the rendezvous store who is lost.

Each learner has a heartbeat thread. Every half second it counts up its own key of the
store, and reads those of all others and the members in one operation. A learner is lost
if its count stands still for `silence` seconds; or for 2 s after one of its connections
has failed; or as soon as its machine says that its process is gone, which is asked when
a connection has failed (`suspects`), or when the count stands still for `QUIET` s. The
store is lost if it does not answer for `silence` seconds; a second thread notices that,
because it never waits for the store.

Whether the training goes on without a lost learner, the algorithm says (`survive`):

    If it does, whoever notices the loss removes the learner from the members
    (`membership`). Everybody reads the members with each heartbeat, and `listeners` are
    told of a change. A learner that is no member any more, because it was stopped or
    cut off for too long, ends with an error: its parameters are out of date.

    If it does not, the run ends. The heartbeat thread notes the reason and severs the
    connections of this process (`connections`), so that every wait for another learner
    raises an error of the network. `watch.Watch` looks at the note, and raises a
    `PeerLostError` which names the lost learner.

A learner may change what others have only while it has a lease: its last heartbeat is
younger than `silence`. The others cannot have given it up before, for silence at least.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.addresses import refuses
from espnet_distopt.distributed.connections import Connections, keeps_store
from espnet_distopt.distributed.ending import Ending
from espnet_distopt.distributed.farewell import LEFT, wait_for_leavers
from espnet_distopt.distributed.heartbeats import Heartbeats
from espnet_distopt.distributed.membership import KEY, Membership
from espnet_distopt.distributed.suspects import PROBE

Store = Any
"""A `torch.distributed.Store`, whose published types lack `clone` and bytes."""

BEAT = 0.5
"""Seconds between two heartbeats."""

LATE = 5.0
"""Seconds by which a thread may wake up too late. If it is later, this process was
stopped itself, and cannot know which learners were silent meanwhile."""

QUIET = 1.5
"""Seconds without a heartbeat after which a learner's machine is asked for its process.
A learner to which nobody talks, as at the end of an epoch, dies without a connection
that fails."""

LINGER = 5.0
"""Seconds for which a failing learner keeps the store, so that others read why."""

START = 1800.0
"""Seconds for which learners wait for one that has not begun its session."""


class Liveness(Ending):
    """The heartbeat of this process, and its knowledge of which learners are lost.

    Cost: four store operations a second; half of them read N + 2 short values.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner's rank.
        size: number of places, N.
        silence: seconds without a heartbeat after which a learner counts as lost.
        incarnation: how often a learner of this rank was started before.

    Attributes:
        membership: who lives, as last read from the store.
        listeners: functions that are called, on the heartbeat's thread, when the
            members have changed.
        port, connections, store_waits, alarms, lost: those of `Ending`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        silence: float = 30,
        incarnation: int = 0,
    ) -> None:
        super().__init__(store)
        self.rank, self.size, self.silence = rank, size, silence
        self.listeners: list[Callable[[], None]] = []
        self._connection = Connections(self.port)
        with self._connection.opening():
            self._store = store.clone()
        self._store.compare_set("failed", "", "")
        self.membership = Membership(self._store, rank, size, incarnation)
        self._store.set(self.beat_key(rank), "0")
        self._others = [peer for peer in range(size) if peer != rank]
        self._lost_with: Callable[[int], Iterable[int]] | None = None
        self._beats = Heartbeats()
        self._asked = 0
        self._all_began = False
        self._began = self._answered = self._lease = time.monotonic()
        self._nudged = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"distopt-{name}", daemon=True)
            for name, work in (("heartbeat", self._beat), ("alarm", self._guard))
        ]
        for thread in self._threads:
            thread.start()

    def beat_key(self, rank: int) -> str:
        """Return the key of the heartbeats of a learner, of its present incarnation."""
        return f"beat/{rank}.{self.membership.incarnation(rank)}"

    @property
    def members(self) -> Members:
        """The living learners, as last read from the store."""
        return self.membership.members

    def survive(self, lost_with: Callable[[int], Iterable[int]]) -> None:
        """Let the training go on when a learner is lost, from now on.

        Args:
            lost_with: returns the ranks that leave the members with a lost one.
        """
        self._lost_with = lost_with

    # The lease

    def has_lease(self) -> bool:
        """Return whether the others cannot have given this learner up for silence."""
        return time.monotonic() - self._lease < self.silence

    def await_lease(self) -> None:
        """Wait for a heartbeat, if the last one is too old.

        Raises:
            RuntimeError: the run ends for this learner.
        """
        while not self.has_lease() and self.lost is None:
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
            begin = time.monotonic()
            count += 1
            try:
                self._store.set(self.beat_key(self.rank), str(count))
                self._look(begin)
                if time.monotonic() - last > LATE + BEAT:
                    self._beats.begin_anew(time.monotonic())
                last = time.monotonic()
                self._judge(last)
            except RuntimeError:
                if not self._stop.is_set():
                    self.note(_STORE_GONE)
                return

    def _look(self, begin: float) -> None:
        """Read the members, the counts of the others, and why a learner has failed."""
        keys = [self.beat_key(peer) for peer in self._others]
        if not self._all_began and not self._store.check(keys):
            keys = []
        self._all_began = bool(keys)
        failed, members, *counts = self._store.multi_get(["failed", KEY, *keys])
        self._answered = now = time.monotonic()
        if failed:
            reason = bytes(failed).decode()
            given_up = reason.startswith(f"learner {self.rank} has ")
            self.note(f"{_GIVEN_UP}: {reason}" if given_up else reason)
        before = self.members
        known = [self.membership.incarnation(peer) for peer in self._others]
        if self.membership.read(members):
            self._forget_replaced(known)
            self._follow(before)
        if not self.membership.excluded:
            self._lease = begin
        for peer, count in zip(self._others, counts, strict=False):
            self._beats.hear(peer, count, now)

    def _forget_replaced(self, known: Iterable[int]) -> None:
        """Forget how long those were silent who have been replaced.

        Args:
            known: the incarnations of the others before.
        """
        for peer, before in zip(self._others, known, strict=True):
            if self.membership.incarnation(peer) != before:
                self._beats.forget(peer)

    def _judge(self, now: float) -> None:
        """Find out who is lost."""
        beats = self._beats
        for peer in beats.heard:
            if peer not in self.members.ranks:
                beats.suspects.pop(peer, None)
            elif beats.silence(peer, now) > self.silence and self._matters(peer):
                if not self._lose_if_gone(peer):
                    self._lose(peer, beats.in_words(peer, now))
            elif peer in beats.suspects:
                self._examine(peer)
        self._examine_one_quiet(now)

    def _examine(self, peer: int) -> None:
        """Decide whether a learner has died whose connection has failed."""
        suspect = self._beats.suspects[peer]
        if self._beats.is_cleared(peer) or self._lose_if_gone(peer):
            return
        if suspect.overdue() and not self._beats.has_left(peer):
            self._lose(
                peer, f"learner {peer} has died or does not respond: {suspect.why}"
            )

    def _examine_one_quiet(self, now: float) -> None:
        """Look for the process of one quiet learner; the others are for later beats.

        Many are quiet at once if their machine is gone, and it may not answer at all.
        """
        quiet = [peer for peer in self._beats.heard if self._is_quiet(peer, now)]
        if quiet:
            self._asked += 1
            self._lose_if_gone(quiet[self._asked % len(quiet)])

    def _is_quiet(self, peer: int, now: float) -> bool:
        """Return whether a member has been silent for a while, and is no suspect."""
        left = self._beats.has_left(peer) or peer not in self.members.ranks
        known = left or peer in self._beats.suspects
        return not known and self._beats.silence(peer, now) > QUIET

    def _lose_if_gone(self, peer: int) -> bool:
        """Lose a member whose machine says that its process is gone; return that."""
        gone = self._is_gone(peer)
        if gone:
            self._lose(peer, f"learner {peer} has died: its process is gone")
        return gone

    def _is_gone(self, peer: int) -> bool:
        """Return whether the machine of a member says that its process is gone."""
        key = self.membership.address_key(peer)
        number = self.membership.incarnation(peer)
        known = self._store.check([key])
        if not known or not refuses(self._store.get(key).decode(), PROBE):
            return False
        self._look(time.monotonic())  # One that ends in an orderly way has said so.
        left = self._beats.has_left(peer) or peer not in self.members.ranks
        replaced = self.membership.incarnation(peer) != number
        return self.lost is None and not left and not replaced

    def _lose(self, peer: int, why: str) -> None:
        """End the run because of a lost learner, or go on without it."""
        if self._lost_with is None:
            self.note(f"{why}; look at its log")
        else:
            before = self.members
            self.membership.remove(self._store, self._lost_with(peer), why)
            if self.members != before:
                self._follow(before)
        # Until now the training waits to be told whether the suspect has died.
        self._beats.suspects.pop(peer, None)

    def _follow(self, before: Members) -> None:
        """Follow a change of the members."""
        after = self.members
        for rank in sorted({*before.ranks} - {*after.ranks}):
            fate = self.membership.fate_key(rank)
            known = self._store.check([fate])
            why = self._store.get(fate).decode() if known else f"learner {rank} is lost"
            if rank != self.rank:
                logging.warning(f"{why}; {len(after.ranks)} of {self.size} go on")
            elif not self.membership.joining:
                self.note(f"{_GIVEN_UP}: {why}; start it again")
        for rank in sorted({*after.ranks} - {*before.ranks, self.rank}):
            number = self.membership.incarnation(rank)
            logging.warning(f"learner {rank} has joined again (restart {number})")
        if self.membership.excluded:
            self.note(f"{_GIVEN_UP}; start it again")
        for listener in tuple(self.listeners):
            listener()

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
            if now - last > LATE + BEAT:
                self._answered = now
            last = now
            if now - self._answered > self.silence:
                self.note(f"{_STORE_SILENT} for {now - self._answered:.0f} s")
                self._connection.sever()
            if not self._all_began and now - self._began > START:
                self.note(f"others have not begun their sessions for {START:.0f} s")

    def _matters(self, peer: int) -> bool:
        """Return whether a silent learner is lost.

        One that has left may be silent, unless a thread is waiting in the store now.
        """
        return not self._beats.has_left(peer) or bool(self.store_waits)

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

    def leave(self, why: str | None = None, alone: bool = False) -> None:
        """End the heartbeat, and tell the others why if this learner has failed.

        The process that keeps the store leaves last, because the others need the store
        to leave. No thread is left in the store: Python aborts a process in which one
        comes back from there after the end of the main thread.

        Args:
            why: the reason of the failure, in words; None if this learner ends well.
            alone: whether the others go on after a failure, if the algorithm survives.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._nudged.set()
        in_time = LINGER if why is not None or self.lost is not None else None
        farewell = threading.Thread(
            target=self._say_goodbye, args=(why, alone), daemon=True
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

    def _say_goodbye(self, why: str | None, alone: bool) -> None:
        for thread in self._threads:
            thread.join()
        if self.membership.joining:
            return  # It has no part in the training, and the others go on.
        try:
            if why is not None and alone and self._lost_with is not None:
                self.membership.remove(self._store, self._lost_with(self.rank), why)
            elif why is not None:
                self._store.compare_set("failed", "", why)
            self._store.set(self.beat_key(self.rank), LEFT)
        except RuntimeError:
            return  # The store is gone, so that no learner can read it any more.


_GIVEN_UP = "the others have given this learner up"
_STORE_GONE = (
    "the rendezvous store is gone: the process that keeps it (learner 0, or the "
    "launcher) has died"
)
_STORE_SILENT = (
    "the process that keeps the rendezvous store (learner 0, or the launcher) has not "
    "answered"
)
