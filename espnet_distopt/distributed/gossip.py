"""The gossip thread of a learner: it carries out the exchanges of one epoch.

An active learner invites a passive one over their own connection (`pairs`), and then
both send their tensor to the other and receive the other's.

One epoch of two learners, Anna (rank 0, active) and Ben (rank 1, passive):

    1. Ben's thread waits on all of his connections.
    2. Anna's training side ends a step. Her thread picks Ben and sends an invitation.
    3. Ben's thread reads it and begins to send. Then hers does, and the tensors cross.
    4. Ben's training side ends its epoch, because he has less data. His thread goes on
       waiting, and answers Anna's further invitations.
    5. Anna's training side ends its epoch. Her last exchange is over, and she retires
       (`core.protocols`). She is the last active learner to do so, and so Ben's
       thread ends.

What could go wrong, and why it does not:

    If Ben's thread ended in step 4, an invitation of Anna's might arrive just after
    that, and she would wait for Ben without end. His thread ends only when all active
    learners that live have retired, and one retires only when its last exchange is
    over: so no invitation can follow.

    If Anna's snapshot were lent from step 2 on, it would grow old while Ben is busy,
    and her training would wait at `max_staleness`. Ben may make no step at all, as he
    waits for her in a barrier of the user's loop: both would wait for ever. It is lent
    when Ben's first bytes have come, and renewed before that if it is too old.

    If Anna and another active learner, Cleo, invite Ben at the same time, each does so
    on her own connection. Ben answers them one after the other.

    If Ben could invite too, Anna might wait for Ben, Ben for Cleo and Cleo for Anna.
    Only active learners invite, and passive ones only answer: no such cycle can form.

    If Ben dies, Anna's connection to him closes, or he is no member any more after a
    silence. Her exchange is dropped, and she goes on with other neighbours.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AwaitInvitation,
    AwaitStep,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
    RunInBackground,
)
from espnet_distopt.core.protocols import end_gossip, gossip_over, retire
from espnet_distopt.distributed.channel import WakeUp, memory_of
from espnet_distopt.distributed.liveness import Liveness, Store
from espnet_distopt.distributed.pairs import Pairs
from espnet_distopt.distributed.streams import Streams
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError

END = 5.0
"""Seconds in which the thread ends when the run has ended for its learner."""

_END_OF_GOSSIP = "the end of the gossip"


class EndOfGossip:
    """A passive learner's wait for the end of an epoch's gossip (`core.protocols`).

    A thread of its own waits for that on a connection of its own, `waiting`, and then
    ends the gossip thread's wait.
    """

    def __init__(
        self, epoch: int, watch: Watch, waiting: Watch, wakeup: WakeUp
    ) -> None:
        self._epoch = epoch
        self._watch = watch
        self._waiting = waiting
        self._wakeup = wakeup
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._version = -1

    def is_over(self, actives: Sequence[int]) -> bool:
        """Return whether none of `actives`, dead or alive, will invite any more.

        A change of this is announced by a wake-up.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._wait, name="distopt-end-of-gossip", daemon=True
            )
            self._thread.start()
        version = self._watch.liveness.members.version
        if version != self._version and not self._over.is_set():
            self._version = version
            with self._watch.asking(_END_OF_GOSSIP):
                if end_gossip(self._watch.store, self._epoch, actives):
                    self._over.set()
        return self._over.is_set()

    def _wait(self) -> None:
        # If the run ends, the gossip thread notices it by itself.
        with contextlib.suppress(PeerLostError):
            self._waiting.wait_for(gossip_over(self._epoch), _END_OF_GOSSIP)
            self._over.set()
            self._wakeup.wake()

    def close(self) -> None:
        """Wait until the thread has ended; the gossip is over."""
        if self._thread is not None:
            self._thread.join()


class Gossip:
    """Carries out the gossip of each epoch, on a thread of its own.

    Its public methods are for the training thread.

    Args:
        liveness: knows which learners live.
        store: the store of all learners; the gossip gets connections of its own.
        monitor: the lock under which the programs of both sides run; it is notified
            when one side has something new for the other.
        tell: tells the algorithm of a change of the members, between two yields.
        spent: the totals that grow by the seconds of waits and the bytes sent.
        record: gets an entry for each section of the program that runs; or None.

    Attributes:
        rounds: the number of epochs whose gossip has begun; the number of the last.
        thread: the gossip thread of this epoch; None between two.
        streams: the order of what both sides do on a GPU.
        progress: how often the program has run from one yield to the next in this
            epoch; the monitor guards it.
        failure: the exception that has ended the program; None if none has.
    """

    def __init__(
        self,
        liveness: Liveness,
        store: Store,
        monitor: threading.Condition,
        tell: Callable[[], None],
        spent: dict[str, float],
        record: list[tuple[str, Any]] | None,
    ) -> None:
        self.rounds = 0
        self.thread: threading.Thread | None = None
        self.streams = Streams(torch.device("cpu"))
        self.progress = 0
        self.failure: BaseException | None = None
        self._monitor, self._tell = monitor, tell
        self._spent, self._record = spent, record
        self._watch = Watch(liveness, store)
        self._end_watch = Watch(liveness, store)
        self._pairs = Pairs(liveness, self._watch)
        self._bytes_sent = self._bytes_counted = 0

    def start(self, program: Program, device: torch.device) -> None:
        """Run `program`, on tensors of `device`, on the gossip thread until `stop`."""
        assert self.thread is None
        self.rounds += 1
        self.streams = Streams(device)
        self.progress = self._steps = self._steps_seen = 0
        self._ending = False
        self._staged: tuple[Tensor, Tensor] | None = None
        self._end_of_gossip = EndOfGossip(
            self.rounds, self._watch, self._end_watch, self._pairs.wakeup
        )
        self.thread = threading.Thread(
            target=self._run, args=(program,), name="distopt-gossip", daemon=True
        )
        self.thread.start()

    @property
    def over(self) -> bool:
        """Whether the gossip of this epoch has ended before its training."""
        thread = self.thread  # Another thread asks, and this epoch may just end.
        return thread is not None and not thread.is_alive()

    def publish(self) -> None:
        """Tell the gossip that the training side has made a step; holds the monitor."""
        self._steps += 1
        self._count_bytes()
        self._monitor.notify_all()

    def _count_bytes(self) -> None:
        """Count what was sent since the last call among the totals."""
        sent = self._bytes_sent
        self._spent["bytes"] += sent - self._bytes_counted
        self._bytes_counted = sent

    def stop(self) -> None:
        """End the gossip of this epoch: returns when no exchange can come any more.

        An active learner stops initiating; a passive one goes on answering until every
        learner that may ask has stopped.
        """
        if self.thread is None:
            return
        with self._monitor:
            self._ending = True
            self._monitor.notify_all()
        while self.thread.is_alive():
            self.thread.join(0.2)
        with self._monitor:
            self.check()
        self._count_bytes()
        self.thread = self._staged = None

    def check(self) -> None:
        """Raise the error that has ended the gossip, if one has."""
        if self.failure is not None:
            raise self.failure

    def wait(self, progress: int) -> None:
        """Wait until the gossip is further than it was when the wait was asked for."""
        start = time.perf_counter()
        with self._monitor:
            while self.progress == progress and self.failure is None:
                self._monitor.wait(1.0)
        self._spent["wait_time"] += time.perf_counter() - start

    def close(self) -> None:
        """End the gossip that an error has left running, and close its connections."""
        thread = self.thread
        if thread is not None:
            self._watch.liveness.note("this learner has left")
            with self._monitor:
                self._monitor.notify_all()  # so that it looks at once whether it ends
            thread.join(END)
            self._end_of_gossip.close()
        self._pairs.close()
        # A thread that is still at work would wait for another file of this number.
        if thread is None or not thread.is_alive():
            self._pairs.wakeup.close()

    # The gossip thread

    def _run(self, program: Program) -> None:
        """Run the program to its end; keep a failure for the training side to raise."""
        try:
            with self.streams.beside():
                self._drive(program)
            self._end_of_gossip.close()
        except BaseException as error:
            clear_frames(error.__traceback__)
            with self._monitor:
                self.failure = error
                self._monitor.notify_all()
        finally:
            # It holds the learner. The failure would keep both, as it keeps this frame.
            del program

    def _drive(self, program: Program) -> None:
        result: object = None
        decided = False
        while True:
            with self._monitor:
                self._tell()
                try:
                    if self._record is not None:
                        self._record.append(("gossip", result if decided else None))
                    with self.streams.gossip_section():
                        effect = program.send(result)
                except StopIteration:
                    break
                finally:
                    self.progress += 1
                    self._monitor.notify_all()
            result = self._perform(effect)
            decided = isinstance(effect, (AwaitStep, AwaitInvitation))

    def _perform(self, effect: Effect) -> object:
        match effect:
            case AwaitStep():
                return self._await_step()
            case Invite(peer):
                with self._watch.asking(f"inviting learner {peer}"):
                    self._pairs.invite(peer, self.rounds)
                return None
            case Retire(actives):
                with self._watch.asking(_END_OF_GOSSIP):
                    live = self._watch.liveness
                    own = live.membership.name(live.rank)
                    retire(self._watch.store, self.rounds, own, actives)
                return None
            case AwaitInvitation(actives):
                return self._await_invitation(actives)
            case Exchange(peer, tensor, into):
                return self._exchange(peer, tensor, into)
            case RunInBackground(work):
                work()
                return None
            case _:
                raise TypeError(f"{effect} does not belong in a gossip program")

    def _await_step(self) -> bool:
        while not self._has_stepped(1.0):
            self._watch.check("a step")
            self._pairs.settle()
        return not self._ending

    def _has_stepped(self, seconds: float) -> bool:
        """Wait for a step, or the end of them; return whether one has come."""
        with self._monitor:
            if self._steps == self._steps_seen and not self._ending:
                self._monitor.wait(seconds)
            stepped = self._steps != self._steps_seen or self._ending
            self._steps_seen = self._steps
            return stepped

    def _await_invitation(self, actives: tuple[int, ...]) -> int | None:
        while not self._end_of_gossip.is_over(actives):
            self._watch.check("gossip")
            peer = self._pairs.await_invitation(self.rounds)
            if peer is not None:
                return peer
        return None

    def _exchange(self, peer: int, tensor: Tensor, into: Tensor) -> Tensor | None:
        outgoing, incoming = self._buffers(tensor, into)
        what = f"after {self._steps} steps of an epoch, the exchange with {peer}"
        with self._watch.asking(what):
            sent, received = memory_of(outgoing), memory_of(incoming)
            if not self._pairs.swap(self.rounds, sent, received):
                return None
        self._bytes_sent += tensor.nbytes
        return into if incoming is into else into.copy_(incoming)

    def _buffers(self, tensor: Tensor, into: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensors to send and to receive into.

        The network takes CPU memory. Tensors on a GPU go through pinned CPU copies.
        """
        if not tensor.is_cuda:
            return tensor, into
        if self._staged is None:
            self._staged = _pinned_like(tensor), _pinned_like(into)
        staged, received = self._staged
        return staged.copy_(tensor), received


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
