"""Who lives and who is lost, as one process finds out by looking at the store.

Each look reads the counts of the others' heartbeats and the members in one operation. A
learner is lost if its count stands still for `silence` seconds; or for 2 s after one of
its connections has failed; or as soon as its machine says that its process is gone,
which is asked when a connection has failed (`suspects`), or when the count stands still
for `QUIET` s. A learner that has not begun this session has no count. It is asked for
where it was in the session before, so that nobody waits for one that has died since.

Whether the training goes on without a lost learner, the algorithm says (`survive`):

    If it does, whoever notices the loss removes the learner from the members
    (`membership`). Everybody reads the members with each look, and `listeners` are told
    of a change. A learner that is no member any more, because it was stopped or cut off
    for too long, ends with an error: its parameters are out of date.

    If it does not, the run ends. The reason is noted (`ending`), and the connections of
    this process are severed (`connections`), so that every wait for another learner
    raises an error of the network. `watch.Watch` looks at the note, and raises a
    `PeerLostError` which names the lost learner.

All looks are on one thread, that of the heartbeat (`liveness`).
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.addresses import refuses
from espnet_distopt.distributed.bell import Bell, Bells
from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.ending import Ending
from espnet_distopt.distributed.heartbeats import Heartbeats
from espnet_distopt.distributed.membership import KEY, Membership, beat_key
from espnet_distopt.distributed.suspects import LONGEST_LOOK, PROBE

QUIET = 1.5
"""Seconds without a heartbeat after which a learner's machine is asked for its process.
A learner to which nobody talks, as at the end of an epoch, dies without a connection
that fails."""

ASKING = LONGEST_LOOK - PROBE
"""Seconds between two looks in which machines are asked. If many do not answer, as when
a switch fails, looks that are late would count as a stop of this process itself."""


class Lookout(Ending):
    """Looks at the heartbeats of the others, and judges which of them are lost.

    Args:
        store: the store of all learners; the looks get a connection of their own.
        rank: this learner's rank.
        size: number of places, N.
        silence: seconds without a heartbeat after which a learner counts as lost.
        incarnation: how often a learner of this rank was started before.
        bells: where processes are asked for; None makes a bell for this one.

    Attributes:
        rank, size, silence: as given.
        membership: who lives, as last read from the store.
        listeners: functions that are called, on the heartbeat's thread, when the
            members have changed.
        port, connections, store_waits, alarms, lost: those of `Ending`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        silence: float,
        incarnation: int,
        bells: Bells | None,
    ) -> None:
        super().__init__(store)
        self.rank, self.size, self.silence = rank, size, silence
        self.listeners: list[Callable[[], None]] = []
        self._connection = Connections(self.port)
        with self._connection.opening():
            self._store = store.clone()
        self._store.compare_set("failed", "", "")
        self.membership = Membership(self._store, rank, size, incarnation)
        self._bell, self._before = bells or Bells(Bell(self._store), {})
        self._store.set(self.membership.bell_key(rank), self._bell.address)
        self._store.set(self.beat_key(rank), "0")
        self._others = [peer for peer in range(size) if peer != rank]
        self._lost_with: Callable[[int], Iterable[int]] | None = None
        self._beats = Heartbeats()
        self._asked = 0
        self._asks_until = 0.0
        self._all_began = False
        self._answered = self._lease = time.monotonic()

    def beat_key(self, rank: int) -> str:
        """Return the key of the heartbeats of a learner, of its present incarnation."""
        return beat_key(rank, self.membership.incarnation(rank))

    @property
    def members(self) -> Members:
        """The living learners, as last read from the store."""
        return self.membership.members

    @property
    def follows_another(self) -> bool:
        """Whether the learners had begun another session before this one."""
        return bool(self._before)

    def survive(self, lost_with: Callable[[int], Iterable[int]]) -> None:
        """Let the training go on when a learner is lost, from now on.

        Args:
            lost_with: returns the ranks that leave the members with a lost one.
        """
        self._lost_with = lost_with

    def forget(self) -> None:
        """Forget the function of `survive`; this learner has left.

        A thread that is stuck in a store which has gone may still call one.
        """
        if self._lost_with is not None:
            self._lost_with = lambda _: ()

    # What a look reads

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

    # Who is lost

    def _judge(self, now: float) -> None:
        """Find out who is lost."""
        beats = self._beats
        self._asks_until = time.monotonic() + min(ASKING, self.silence / 4)
        for peer in beats.heard:
            if self.lost is not None:
                return
            if peer not in self.members.ranks:
                beats.suspects.pop(peer, None)
            elif beats.silence(peer, now) > self.silence and self._matters(peer):
                if not self._lose_if_gone(peer):
                    self._lose(peer, beats.in_words(peer, now))
            elif peer in beats.suspects:
                self._examine(peer, now)
        self._examine_one_quiet(now)
        if not self._all_began and self._before:
            self._examine_one_awaited()

    def _examine_one_awaited(self) -> None:
        """Look for the process of one learner that has not begun, and end without it.

        Each learner asks for its neighbours first, so that together they ask for all.
        """
        self._asked += 1
        peer = (self.rank + self._asked) % self.size
        if self._store.check([self.beat_key(peer)]):
            return
        if refuses(self._before[peer], PROBE):
            self.note(
                f"learner {peer} has died before this session: its process is gone, "
                "and a session needs all learners; start all of them again"
            )

    def _examine(self, peer: int, now: float) -> None:
        """Decide whether a learner has died whose connection has failed."""
        suspect = self._beats.suspects[peer]
        if self._beats.is_cleared(peer, now) or self._lose_if_gone(peer):
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

    def _matters(self, peer: int) -> bool:
        """Return whether a silent learner is lost.

        One that has left may be silent, unless a thread is waiting in the store now.
        """
        return not self._beats.has_left(peer) or bool(self.store_waits)

    def _lose_if_gone(self, peer: int) -> bool:
        """Lose a member whose machine says that its process is gone; return that.

        Machines that do not answer are asked for so long only, between two looks.
        """
        gone = time.monotonic() < self._asks_until and self._is_gone(peer)
        if gone:
            self._lose(peer, f"learner {peer} has died: its process is gone")
        return gone

    def _is_gone(self, peer: int) -> bool:
        """Return whether the machine of a member says that its process is gone."""
        key = self.membership.bell_key(peer)
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


_GIVEN_UP = "the others have given this learner up"
