"""The process-group driver: one learner a process, over `torch.distributed`.

Collectives run on the training thread. Gossip runs on one thread of its own, over a
gloo group of its own, from CPU memory (pinned for a GPU): NCCL supports neither several
threads nor waiting for whichever peer comes. Algorithms run under one lock, which is
released while an effect is carried out; so the code between two yields is atomic.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.drivers.gossip import GossipThread
from espnet_distopt.drivers.liveness import Liveness, PeerLostError, Watch
from espnet_distopt.effects import (
    AllReduceMean,
    AwaitGossip,
    Broadcast,
    Effect,
    Program,
)

_serial = itertools.count()
"""Numbers the drivers of a process: their keys in the store must not meet."""


class ProcessGroupDriver:
    """Carries out effects between the processes of the default process group.

    Without a process group it serves one learner alone. All processes construct it
    together (it creates groups).

    Args:
        timeout: of any single network operation; a learner that dies is noticed much
            earlier, one that is cut off by the network no later than this.
        silence: seconds without a heartbeat after which a learner counts as lost.

    Attributes:
        rank, size: of this learner, among all.
        spent: seconds that the training thread spent in collectives ("comm_time") and
            in waits for gossip ("wait_time"), and bytes sent ("bytes").
    """

    def __init__(
        self, timeout: timedelta = timedelta(minutes=30), silence: float = 30
    ) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.rank, self.size = 0, 1
        self._gossip: GossipThread | None = None
        self._liveness: Liveness | None = None
        self._rounds = 0
        self._meetings = 0
        self._monitor = threading.Condition()
        if not dist.is_initialized():
            return
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if self.size == 1:
            return
        # Separate groups, because a timeout destroys the group it happens in.
        self._cpu_group = dist.new_group(backend="gloo", timeout=timeout)
        self._gossip_group = dist.new_group(backend="gloo", timeout=timeout)
        default = dist.distributed_c10d._get_default_store()
        store = PrefixStore(f"espnet_distopt/{next(_serial)}", default)
        self._liveness = Liveness(store, self.rank, self.size, silence)
        self._watch = Watch(self._liveness, store)
        self._gossip_watch = Watch(self._liveness, store)

    def run(self, program: Generator[Effect, Any, Any]) -> Any:
        """Run `program` on the calling thread and return its value.

        Raises:
            PeerLostError: another learner has died; the message names it.
        """
        result: Any = None
        while True:
            with self._monitor:
                self._check_gossip()
                try:
                    effect = program.send(result)
                except StopIteration as stop:
                    return stop.value
                progress = self._gossip.progress if self._gossip else 0
            result = self._perform(effect, progress)

    def _perform(self, effect: Effect, progress: int) -> Any:
        match effect:
            case AllReduceMean(tensor):
                return self._all_reduce_mean(tensor)
            case Broadcast(tensor):
                return self._broadcast(tensor)
            case AwaitGossip():
                return self._await_gossip(progress)
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _group(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """Return NCCL's default group for a GPU tensor where there is one."""
        nccl = tensor.is_cuda and dist.get_backend() == "nccl"
        return None if nccl else self._cpu_group

    def _all_reduce_mean(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor
        with self._on_network("an all-reduce"):
            dist.all_reduce(tensor, group=self._group(tensor))
        self.spent["bytes"] += 2 * tensor.nbytes * (self.size - 1) // self.size
        return tensor.div_(self.size)

    def _broadcast(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            with self._on_network("a broadcast"):
                dist.broadcast(tensor, src=0, group=self._group(tensor))
        return tensor

    @contextmanager
    def _on_network(self, what: str) -> Generator[None, None, None]:
        start = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise self._watch.explain(error, what) from error
        finally:
            self.spent["comm_time"] += time.perf_counter() - start

    # Gossip

    def start_gossip(self, program: Program) -> None:
        """Run `program` on the gossip thread until `stop_gossip`."""
        if self.size == 1:
            return
        assert self._gossip is None
        self._rounds += 1
        self._gossip = GossipThread(
            program,
            self._monitor,
            f"mail/{self._rounds}",
            self._gossip_watch,
            self._gossip_group,
            self.rank,
        )
        self._gossip.start()

    def published(self) -> None:
        """Tell the gossip side that the training side has made a step."""
        if self._gossip is not None:
            with self._monitor:
                self._gossip.steps += 1
                self._monitor.notify_all()

    def stop_gossip(self) -> None:
        """End the gossip of this epoch: returns when no exchange can come any more.

        An active learner stops initiating; a passive one goes on answering until every
        learner that may ask has stopped.
        """
        if self._gossip is None:
            return
        gossip = self._gossip
        with self._monitor:
            gossip.ending = True
            self._monitor.notify_all()
        while gossip.is_alive():
            gossip.join(0.2)
        with self._monitor:
            self._check_gossip()
        self.spent["bytes"] += gossip.bytes_sent
        self._gossip = None

    def _check_gossip(self) -> None:
        if self._gossip is not None and self._gossip.failure is not None:
            raise self._gossip.failure

    def _await_gossip(self, progress: int) -> None:
        """Wait until the gossip is further than it was when the wait was asked for."""
        assert self._gossip is not None
        start = time.perf_counter()
        with self._monitor:
            while self._gossip.progress == progress and self._gossip.failure is None:
                self._monitor.wait(1.0)
        self.spent["wait_time"] += time.perf_counter() - start

    # Meeting and leaving

    def meet(self) -> None:
        """Wait for all learners, however long they take, as long as they live.

        Comes before the collectives at the end of an epoch, which a learner may reach
        long before a slow one, and which would then run into their timeout.
        """
        if self.size == 1:
            return
        assert self._liveness is not None
        start = time.perf_counter()
        self._meetings += 1
        arrived, complete = f"meet/{self._meetings}", f"met/{self._meetings}"
        try:
            if self._watch.store.add(arrived, 1) == self.size:
                self._watch.store.set(complete, b"1")
        except RuntimeError as error:
            raise self._watch.explain(error, "the end of an epoch") from error
        self._watch.wait_for(complete, self._liveness.others)
        self.spent["wait_time"] += time.perf_counter() - start

    def leave(self, error: BaseException | None = None) -> None:
        """Stop the heartbeat; with an `error`, tell the other learners about it."""
        if self._liveness is None:
            return
        if isinstance(error, PeerLostError):
            self._liveness.last_words(error.reason)  # else this one is taken for lost
        elif error is not None:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            self._liveness.last_words(f"learner {self.rank} ended with {what}")
        self._liveness.stop()
