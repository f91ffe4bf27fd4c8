"""The gossip side of a learner, as the training side sees it: one thread an epoch."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from espnet_distopt.core.effects import Program
from espnet_distopt.distributed.gossip_thread import GossipThread
from espnet_distopt.distributed.liveness import Liveness, Store
from espnet_distopt.distributed.pairs import Pairs
from espnet_distopt.distributed.retirement import Retirement
from espnet_distopt.distributed.streams import Streams
from espnet_distopt.distributed.watch import Watch


class GossipSide:
    """Starts, awaits and ends the gossip of each epoch, on the training thread.

    Args:
        liveness: knows which learners live.
        store: the store of all learners; the gossip gets connections of its own.
        monitor: the lock under which the programs of both sides run.
        tell: tells the algorithm of a change of the members.
        spent: the totals that grow by the seconds of waits and the bytes sent.
        record: the list of the sections that have run; None if it is not kept.

    Attributes:
        rounds: the number of epochs whose gossip has begun; the number of the last.
        thread: the gossip thread of this epoch; None between two.
        streams: the order of what both sides do on a GPU.
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
        self.thread: GossipThread | None = None
        self.streams = Streams(torch.device("cpu"))
        self._monitor, self._tell = monitor, tell
        self._spent, self._record = spent, record
        self._watch = Watch(liveness, store)
        self._retirement_watch = Watch(liveness, store)
        self._pairs = Pairs(liveness, self._watch)

    @property
    def progress(self) -> int:
        """How far the gossip of this epoch is; it grows with each of its sections."""
        return self.thread.progress if self.thread else 0

    @property
    def over(self) -> bool:
        """Whether the gossip of this epoch has ended before its training."""
        thread = self.thread
        return thread is not None and not thread.is_alive()

    def start(self, program: Program, device: torch.device) -> None:
        """Run `program`, on tensors of `device`, on the gossip thread until `stop`."""
        assert self.thread is None
        self.streams = Streams(device)
        self.rounds += 1
        retirement = Retirement(
            self.rounds, self._watch, self._retirement_watch, self._pairs.wakeup
        )
        self.thread = GossipThread(
            program,
            self._monitor,
            self.rounds,
            self._watch,
            self._pairs,
            retirement,
            self._tell,
            self.streams,
            self._record,
        )
        self.thread.start()

    def publish(self) -> None:
        """Tell the gossip that the training side has made a step; holds the monitor."""
        assert self.thread is not None
        self.thread.steps += 1
        self._monitor.notify_all()

    def stop(self) -> None:
        """End the gossip of this epoch: returns when no exchange can come any more.

        An active learner stops initiating; a passive one goes on answering until every
        learner that may ask has stopped.
        """
        thread = self.thread
        if thread is None:
            return
        with self._monitor:
            thread.ending = True
            self._monitor.notify_all()
        while thread.is_alive():
            thread.join(0.2)
        with self._monitor:
            self.check()
        self._spent["bytes"] += thread.bytes_sent
        self.thread = None

    def check(self) -> None:
        """Raise the error that has ended the gossip, if one has."""
        if self.thread is not None and self.thread.failure is not None:
            raise self.thread.failure

    def wait(self, progress: int) -> None:
        """Wait until the gossip is further than it was when the wait was asked for."""
        assert self.thread is not None
        start = time.perf_counter()
        with self._monitor:
            while self.thread.progress == progress and self.thread.failure is None:
                self._monitor.wait(1.0)
        self._spent["wait_time"] += time.perf_counter() - start

    def close(self) -> None:
        """End the gossip that an error has left running, and close its connections."""
        thread = self.thread
        if thread is not None:
            self._watch.liveness.note("this learner has left")
            thread.end()
        self._pairs.close()
        # A thread that is still at work would wait for another file of this number.
        if thread is None or not thread.is_alive():
            self._pairs.wakeup.close()
