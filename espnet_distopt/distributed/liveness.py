"""Who lives: learners hear it from the launcher at once, and else by heartbeats.

This package's launcher knows when one of its processes has ended, and writes so to the
rendezvous store (`keys.ENDED`). Whatever else may happen is known by heartbeats. Each
learner has a thread that looks at the store every half second: it counts up a key of
its own, and reads what the launcher has written, the members, and the counts of all
others (`heartbeats`). When a connection has failed, it looks ten times a second.

Whether the training goes on without a lost learner, the algorithm says (`survive`):

    If it does, whoever notices the loss removes the learner from the members
    (`core.protocols`). Everybody reads the members with each look, and `listeners` are
    told of a change. A learner that is no member any more, because it was stopped or
    cut off for too long, ends with an error: its parameters are out of date.

    If it does not, the run ends. The reason is noted (`lost`), and the connections of
    this process are severed (`connections`), so that every wait for another learner
    raises an error of the network. `watch.Watch` looks at the note, and raises a
    `PeerLostError` which names the lost learner.

A learner may change what others have only while it has a lease: its last heartbeat is
younger than `silence`. The others cannot have given it up before, for silence at least.

The store is lost if it does not answer for `silence` seconds. A second thread notices
that, because it never waits for the store.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from espnet_distopt.core.membership import Members
from espnet_distopt.core.protocols import MEMBERS, Membership, fate, learner_name
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.addresses import machine, store_address
from espnet_distopt.distributed.connections import Connections, keeps_store
from espnet_distopt.distributed.heartbeats import LEFT, PROBE, Heartbeats
from espnet_distopt.distributed.launch_variables import INCARNATION, incarnation
from espnet_distopt.distributed.launcher import announce_end, without_prefix

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

_GIVEN_UP = "the others have given this learner up"
_STORE_GONE = (
    "the rendezvous store is gone: the process that keeps it (learner 0, or the "
    "launcher) has died"
)
_STORE_SILENT = (
    "the process that keeps the rendezvous store (learner 0, or the launcher) has not "
    "answered"
)


class Liveness:
    """The heartbeat of this process, and its knowledge of which learners are lost.

    Cost: four store operations a second, and two more under the launcher; two of them
    read N + 2 short values.

    Args:
        store: the store of all learners; the heartbeat gets a connection of its own.
        rank: this learner's rank.
        size: number of places, N.
        silence: seconds without a heartbeat after which a learner counts as lost.
        number: how often a learner of this rank had begun this session before.
        before: rank -> the process of this learner in the session before, as
            `processes` returns it; empty if that was none, or nobody knows.

    Attributes:
        membership: who lives, as last read from the store.
        listeners: functions that are called, on the heartbeat's thread, when the
            members have changed.
        port: the port of the store; None if it is not a TCP store.
        connections: the driver's connections, which are severed when the run ends.
        store_waits: the connections to the store on which threads are waiting now.
        alarms: functions that are called, on any thread, when the run ends.
        lost: why the run ends for this learner, in words; None as long as it does not.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        silence: float = 30,
        number: int = 0,
        before: Mapping[int, str] | None = None,
    ) -> None:
        self.rank, self.size, self.silence = rank, size, silence
        address = store_address(store)
        self.port = address and address[1]
        self.connections = Connections(self.port)
        self.store_waits: list[Connections] = []
        self.alarms: list[Callable[[], None]] = []
        self.listeners: list[Callable[[], None]] = []
        self.lost: str | None = None
        self._noted = threading.Event()
        self._connection = Connections(self.port)
        with self._connection.opening():
            self._store = store.clone()
        self._store.compare_set(keys.FAILED, "", "")
        self._launched = INCARNATION in os.environ
        if self._launched:
            without_prefix(self._store).compare_set(keys.ENDED, "", "")
        # The training's thread and the heartbeat's read it.
        lock = threading.Lock()
        self.membership = Membership(self._store, rank, size, number, lock)
        own = self.membership.name(rank)
        self._store.set(keys.process(own), f"{incarnation()} {machine()}")
        self._store.set(keys.beat(own), "0")
        self._others = [peer for peer in range(size) if peer != rank]
        self._before = before or {}
        self._lost_with: Callable[[int], Iterable[int]] | None = None
        self._remark: Callable[[], str] = str
        self._beats = Heartbeats(silence)
        self._ends_judged: set[str] = set()
        self._all_began = False
        self._began = self._answered = self._lease = time.monotonic()
        self._late = min(LATE, silence / 2) + BEAT
        self._nudged = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"distopt-{name}", daemon=True)
            for name, work in (("heartbeat", self._beat), ("alarm", self._guard))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def members(self) -> Members:
        """The living learners, as last read from the store."""
        return self.membership.members

    @property
    def follows_another(self) -> bool:
        """Whether the learners had begun another session before this one."""
        return bool(self._before)

    def survive(
        self,
        lost_with: Callable[[int], Iterable[int]],
        remark: Callable[[], str] = str,
    ) -> None:
        """Let the training go on when a learner is lost, from now on.

        `lost_with` returns the ranks that leave the members with a lost one; `remark`
        returns what to add to the line of the log on a loss.
        """
        self._lost_with, self._remark = lost_with, remark

    def forget(self) -> None:
        """Forget the functions of `survive`; this learner has left.

        A thread that is stuck in a store which has gone may still call one.
        """
        if self._lost_with is not None:
            self._lost_with, self._remark = lambda _: (), str

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

    # The end of the run for this process

    def note(self, reason: str) -> None:
        """Note why the run ends, unless there is an earlier reason; end every wait."""
        if self.lost is None:
            self.lost = reason
            self._noted.set()
            self._end_waits()
            for alarm in tuple(self.alarms):
                alarm()

    def _end_waits(self) -> None:
        """End the waits of all threads for other learners and for the store."""
        self.connections.sever()
        for wait in tuple(self.store_waits):
            wait.sever()

    def pause(self) -> None:
        """Wait for a moment, or until the run ends."""
        self._noted.wait(PROBE)

    def wait_for_note(self, seconds: float) -> str | None:
        """Return who is lost and why, as soon as known; None if nobody in `seconds`."""
        self._noted.wait(seconds)
        return self.lost

    @contextmanager
    def waiting(self, store: Connections) -> Generator[None, None, None]:
        """Mark this learner as waiting for others in the store, inside.

        Meanwhile a learner that has left counts as lost, because it will not come.
        """
        self.store_waits.append(store)
        try:
            yield
        finally:
            self.store_waits.remove(store)

    # Suspects

    def suspect(self, peers: Iterable[int], why: str) -> None:
        """Find out soon whether `peers` have died: a connection to one has failed."""
        self._beats.suspect((peer for peer in peers if peer != self.rank), why)
        self._nudged.set()

    def suspects(self, peers: Iterable[int]) -> bool:
        """Return whether it is still open if any of `peers` has died."""
        return not self._beats.suspects.keys().isdisjoint(peers)

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
                self._store.set(keys.beat(self.membership.name(self.rank)), str(count))
                ended = self._look(begin)
                if time.monotonic() - last > self._late:
                    self._beats.begin_anew(time.monotonic())
                last = time.monotonic()
                self._judge(last, ended)
            except RuntimeError:
                if not self._stop.is_set():
                    self.note(_STORE_GONE)
                return

    def _look(self, begin: float) -> set[str]:
        """Read the members, the others' counts, and why a learner has failed.

        Returns the processes that have ended, as the launcher says. They come first:
        one that has left in an orderly way has said so before it ended.
        """
        ended: set[str] = set()
        if self._launched:
            text = without_prefix(self._store).get(keys.ENDED)
            ended = {*text.decode().split()} - self._ends_judged
        beats = [keys.beat(self.membership.name(peer)) for peer in self._others]
        if not self._all_began and not self._store.check(beats):
            beats = []
        self._all_began = bool(beats)
        failed, members, *counts = self._store.multi_get([keys.FAILED, MEMBERS, *beats])
        self._answered = now = time.monotonic()
        if failed:
            reason = bytes(failed).decode()
            given_up = reason.startswith(f"learner {self.rank} has ")
            self.note(f"{_GIVEN_UP}: {reason}" if given_up else reason)
        before, known = self.members, self.membership.incarnations
        if self.membership.read(members):
            for peer in self._others:
                if self.membership.incarnation(peer) != known[peer]:
                    self._beats.forget(peer)
            self._follow(before, known)
        if not self.membership.excluded:
            self._lease = begin
        for peer, count in zip(self._others, counts, strict=False):
            self._beats.hear(peer, count, now)
        return ended

    def _judge(self, now: float, ended: Iterable[str]) -> None:
        """Find out who is lost, of whom the counts and the ends were read `now`."""
        for process in ended:
            if self.lost is None:
                self._judge_end(process)
        for peer in self._others:
            if self.lost is not None:
                return
            if peer not in self.members.ranks:
                self._beats.clear(peer)
            elif why := self._beats.why_lost(peer, now, bool(self.store_waits)):
                self._lose(peer, why)

    def _judge_end(self, process: str) -> None:
        """Lose the learner whose process has ended, unless it has left before that.

        It may have been a learner that was replaced since, or that has not begun this
        session.
        """
        peer = int(process.partition(".")[0])
        name = self.membership.name(peer)
        if self._store.check([keys.process(name)]):
            self._ends_judged.add(process)
            present = _process(peer, self._store.get(keys.process(name)))
            known = peer != self.rank and peer in self.members.ranks
            if known and present == process and not has_left(self._store, name):
                self._lose(peer, f"learner {peer} has died: its process is gone")
                # That is why connections to others have failed, too.
                self._beats.suspects.clear()
        elif self._before.get(peer) == process:
            self.note(
                f"learner {peer} has died before this session: its process is gone, "
                "and a session needs all learners; start all of them again"
            )

    def _lose(self, peer: int, why: str) -> None:
        """End the run because of a lost learner, or go on without it."""
        if self._lost_with is None:
            self.note(f"{why}; look at its log")
        else:
            before, known = self.members, self.membership.incarnations
            self.membership.remove(self._store, self._lost_with(peer), why)
            if self.members != before:
                self._follow(before, known)
        # Until now the training waits to be told whether the suspect has died.
        self._beats.clear(peer)

    def _follow(self, before: Members, earlier: Mapping[int, int]) -> None:
        """Follow a change of the members, who had other incarnations earlier.

        One that was replaced before anybody had noticed its death has never left them.
        """
        after = self.members
        for rank in sorted({*before.ranks} - {*after.ranks}):
            key = fate(self.membership.name(rank))
            known = self._store.check([key])
            why = self._store.get(key).decode() if known else f"learner {rank} is lost"
            if rank != self.rank:
                who = f"{len(after.ranks)} of {self.size} go on"
                logging.getLogger(__name__).warning(f"{why}; {who}{self._remark()}")
            elif not self.membership.joining:
                self.note(f"{_GIVEN_UP}: {why}; start it again")
        for rank in sorted({*after.ranks} - {self.rank}):
            number = self.membership.incarnation(rank)
            if rank not in before.ranks or number != earlier[rank]:
                logging.getLogger(__name__).warning(
                    f"learner {rank} has joined again (restart {number})"
                )
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
                self._end_waits()  # A wait may have begun since the last look.
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

    # Leaving

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
            living = [peer for peer in self._others if peer in self.members.ranks]
            names = [self.membership.name(peer) for peer in living]
            wait_for_leavers(self._store, names, self.silence, in_time)

    def _say_goodbye(self, why: str | None, alone: bool, faulty: bool) -> None:
        for thread in self._threads:
            thread.join()
        try:
            if why is not None:
                go_on = self._leave_others(why, alone)
                what = why.removeprefix(f"learner {self.rank} ended with ")
                announce_end(self._store, self.rank, go_on and not faulty, what)
            if not self.membership.joining:
                own = keys.beat(self.membership.name(self.rank))
                self._store.set(own, LEFT)
                # It is answered, and so the store has it before the process can end.
                self._store.check([own])
        except RuntimeError:
            return  # The store is gone, so that no learner can read it any more.

    def _leave_others(self, why: str, alone: bool) -> bool:
        """Leave the members, or end the run for all; return whether they go on."""
        if self.membership.joining:
            return True  # It has no part in the training.
        failed = self._store.get(keys.FAILED)
        if alone and self._lost_with is not None and not failed:
            self.membership.remove(self._store, self._lost_with(self.rank), why)
            return True
        self._store.compare_set(keys.FAILED, "", why)
        return False


def has_left(store: Store, learner: str) -> bool:
    """Return whether a learner (`learner_name`) has left the session of a store."""
    key = keys.beat(learner)
    return store.check([key]) and bytes(store.get(key)) == LEFT


def wait_for_leavers(
    store: Store, learners: Sequence[str], silence: float, seconds: float | None
) -> None:
    """Wait until other learners (`learner_name`) have left, or were silent for so long.

    A learner that has not begun the session is as one that is silent: it may be about
    to begin, and would then need the store to hear why the others have ended. The wait
    takes `seconds` at most; None means no limit.
    """
    begin = time.monotonic()
    staying = {keys.beat(each): (b"", begin) for each in learners}
    while staying and (seconds is None or time.monotonic() - begin < seconds):
        for beat, (before, since) in tuple(staying.items()):
            # To read a key that does not exist would wait for it.
            count = bytes(store.get(beat)) if store.check([beat]) else b""
            now = time.monotonic()
            if count == LEFT or now - since > silence:
                del staying[beat]
            elif count != before:
                staying[beat] = count, now
        time.sleep(0.005)


def machine_of(value: bytes) -> str:
    """Return the machine of a learner, of what it has written (`keys.process`)."""
    return value.decode().partition(" ")[2]


def processes(store: Store, membership: Membership) -> dict[int, str]:
    """Return the processes of a session's learners by rank; {} if not all had begun.

    A process has the name that the launcher gives it (`launch.learner`). Cost: N + 1
    operations of the session's part of the store.
    """
    written = [keys.process(membership.name(r)) for r in range(membership.size)]
    if not store.check(written):
        return {}
    return {rank: _process(rank, store.get(key)) for rank, key in enumerate(written)}


def _process(rank: int, value: bytes) -> str:
    return learner_name(rank, int(bytes(value).decode().partition(" ")[0]))
