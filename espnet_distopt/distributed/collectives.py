"""The collectives of the process-group driver, which run on the training thread.

Every collective is begun and then waited for. If an algorithm yields `Begin` and `Wait`
itself, training runs in between; otherwise the wait follows at once. All-to-all and
all-gather are an exception: `begin` returns only when they are complete, together with
the algorithm's work beside them (see `messages`). Messages to neighbours go over gloo
from CPU memory (pinned for a GPU), because NCCL's point-to-point operations, and its
collectives of several groups, can deadlock.
"""

import functools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Broadcast,
    Collective,
    GroupCollective,
    NeighbourAllGather,
    Work,
)
from espnet_distopt.distributed import messages
from espnet_distopt.distributed.gloo import LOOK, Vain, in_vain
from espnet_distopt.distributed.groups import Group, Groups
from espnet_distopt.distributed.watch import Watch

TAG = 11
"""The tag of messages to neighbours. Those of a pair arrive in the order of posting."""

POLL = 1e-4
"""Seconds between two looks at whether an operation of NCCL is complete."""

_NAMES = {
    AllReduceMean: "an all-reduce",
    Broadcast: "a broadcast",
    AllToAll: "an all-to-all",
    AllGather: "an all-gather",
    NeighbourAllGather: "an exchange with neighbours",
}


@dataclass(frozen=True)
class InFlight:
    """A collective that has begun.

    Attributes:
        what: what the collective is, in words, for messages.
        works: the operations of the backend that must be complete.
        finish: returns the result when they are complete.
        kept: a tensor that must not be freed before that.
        on_gpu: whether the operations are NCCL's.
        vain: says whether they cannot be completed any more.
    """

    what: str
    works: list[Any]
    finish: Callable[[], Tensor]
    kept: object = None
    on_gpu: bool = False
    vain: Vain = lambda: None


class Collectives:
    """Carries out collectives between processes; `groups` is None for one alone.

    The totals `spent` grow by the seconds spent in collectives ("comm_time") and by the
    bytes sent ("bytes").
    """

    def __init__(self, groups: Groups | None, spent: dict[str, float]) -> None:
        self._groups = groups
        self._spent = spent

    def begin(self, effect: Collective) -> InFlight:
        """Begin `effect` and return at once.

        Raises:
            PeerLostError: one of its learners has died; the message names it.
        """
        what, groups = _NAMES[type(effect)], self._groups
        if isinstance(effect, NeighbourAllGather):
            if groups is None or not effect.peers:
                return InFlight(what, [], lambda: alone(effect))
            self._spent["bytes"] += effect.bytes_sent(len(groups.everybody))
            with self._groups_watch.asking(what), self.timed():
                handle = _send_to_neighbours(what, effect, groups.messages)
            return replace(handle, vain=self._without(()))
        assert isinstance(effect, GroupCollective)
        if groups is None or len(ranks := effect.ranks or groups.everybody) == 1:
            return InFlight(what, [], lambda: alone(effect))
        group = groups.of(ranks, effect.tensor)
        with self._groups_watch.asking(what):
            return self.begin_in(group, effect, ranks, self._without(ranks))

    def begin_in(
        self,
        group: Group,
        effect: GroupCollective,
        ranks: tuple[int, ...],
        vain: Vain,
    ) -> InFlight:
        """Begin `effect` in a group of `ranks`, and leave its errors unexplained."""
        what = _NAMES[type(effect)]
        effect = self._without_work(effect)
        self._spent["bytes"] += effect.bytes_sent(len(ranks))
        with self.timed():
            complete = functools.partial(self._await, vain=vain)
            handle = _begin_in_group(what, effect, group, complete)
        return replace(handle, vain=vain)

    def wait(self, handle: InFlight) -> Tensor:
        """Wait for a collective that has begun, and return its result.

        Raises:
            PeerLostError: one of its learners has died; the message names it.
        """
        if handle.works:
            with self._groups_watch.asking(handle.what):
                self.complete(handle)
        return handle.finish()

    def complete(self, handle: InFlight) -> None:
        """Wait for the operations of a collective, and leave errors unexplained."""
        with self.timed():
            self._await(handle.works, handle.on_gpu, handle.vain)

    def _await(self, works: Sequence[Any], on_gpu: bool, vain: Vain) -> None:
        if on_gpu:
            for work in works:
                _poll(work, vain)
        elif works and self._groups is not None:
            self._groups.waiter.wait(works, vain)

    def _without(self, ranks: tuple[int, ...]) -> Vain:
        """Return what says whether one of `ranks` is lost, or the run has ended."""
        return functools.partial(in_vain, self._groups_watch.liveness, ranks)

    @property
    def _groups_watch(self) -> Watch:
        assert self._groups is not None
        return self._groups.watch

    def _without_work(self, effect: GroupCollective) -> GroupCollective:
        """Return `effect`, with its work not counted as communication time."""

        def uncounted(work: Work) -> Work:
            def run(stop: int) -> None:
                start = time.perf_counter()
                work(stop)
                self._spent["comm_time"] -= time.perf_counter() - start

            return run

        return effect.with_work(uncounted)

    @contextmanager
    def timed(self) -> Generator[None, None, None]:
        """Count the time inside as that of communication."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent["comm_time"] += time.perf_counter() - start


def _poll(work: Any, vain: Vain) -> None:
    """Wait until `work`, an operation of NCCL, is complete.

    NCCL's own wait returns at once, and if a learner is lost, the first operation that
    reads the result hangs. So this polls until the operation is complete or in vain.
    """
    looked = time.monotonic()
    while not work.is_completed():
        if time.monotonic() - looked > LOOK:
            looked = time.monotonic()
            if (why := vain()) is not None:
                raise RuntimeError(why)
        time.sleep(POLL)
    work.wait()


def alone(effect: Collective) -> Tensor:
    """Return the result of a collective of one learner alone."""
    match effect:
        case AllToAll(tensor, _, into, arrived):
            received = torch.empty_like(tensor) if into is None else into
            received.copy_(tensor)
            if arrived is not None:
                arrived(tensor.shape[1])
            return received
        case AllGather(tensor, _, into, prepare):
            if prepare is not None:
                prepare(len(tensor))
            if into is None:
                return tensor[None].clone()
            if into.data_ptr() != tensor.data_ptr():
                into.copy_(tensor)
            return into
        case NeighbourAllGather(tensor):
            return tensor.new_empty((0, *tensor.shape))
        case _:
            return effect.tensor


def _begin_in_group(
    what: str,
    effect: GroupCollective,
    group: Group,
    complete: messages.Complete,
) -> InFlight:
    tensor, size = effect.tensor, group.size()
    match effect:
        case AllReduceMean():
            sent = _contiguous(tensor)
            work = group.allreduce([sent])
            return InFlight(
                what,
                [work],
                lambda: _back(sent.div_(size), tensor),
                on_gpu=tensor.is_cuda,
            )
        case Broadcast():
            sent = _contiguous(tensor)
            # It is sent as bytes, because no backend knows every dtype.
            flat = sent.as_strided((sent.numel(),), (1,)).view(torch.uint8)
            work = group.broadcast(flat, 0)
            return InFlight(
                what, [work], lambda: _back(sent, tensor), on_gpu=tensor.is_cuda
            )
        case AllToAll(into=into, arrived=arrived):
            tensor = _with_whole_rows(tensor)
            received = torch.empty_like(tensor) if into is None else into
            messages.all_to_all(group, tensor, received, arrived, complete)
        case AllGather(into=into, prepare=prepare):
            if prepare is None:  # `prepare` writes to this very tensor, not to a copy.
                tensor = _with_whole_rows(tensor)
            shape = (size, *tensor.shape)
            received = tensor.new_empty(shape) if into is None else into
            messages.all_gather(group, tensor, received, prepare, complete)
    return InFlight(what, [], lambda: received)


def _contiguous(tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy of it that a backend can read and write as a whole."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def _back(result: Tensor, tensor: Tensor) -> Tensor:
    """Copy `result` to `tensor`, unless they are the same, and return `tensor`."""
    return tensor if result is tensor else tensor.copy_(result)


def _with_whole_rows(tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy, with its last dimension contiguous in memory."""
    whole = tensor.shape[-1] < 2 or tensor.stride(-1) == 1
    return tensor if whole else tensor.contiguous()


def _send_to_neighbours(
    what: str, effect: NeighbourAllGather, group: Group
) -> InFlight:
    """Post all sends and receives before any wait, so that learners need no order."""
    tensor, peers = effect.tensor, effect.peers
    pinned = tensor.is_cuda
    sent = tensor.contiguous()
    if pinned:
        sent = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
    shape = (len(peers), *tensor.shape)
    into = tensor.new_empty(shape) if effect.into is None else effect.into
    received = into
    if pinned:
        received = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
    # The receives are waited for first: gloo ends them when a connection fails, which
    # it may not do with a send (see `gloo`).
    works = [group.recv([row], p, TAG) for p, row in zip(peers, received, strict=True)]
    works += [group.send([sent], peer, TAG) for peer in peers]
    return InFlight(what, works, lambda: _back(received, into), sent)
