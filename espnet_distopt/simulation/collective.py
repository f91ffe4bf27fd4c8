"""The module carries out the collectives of a simulation.

It waits until all learners of a collective have yielded it, computes how long it takes,
and gives each learner its result at the end of that time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Barrier,
    Broadcast,
    NeighbourAllGather,
)
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.cluster import Network
from espnet_distopt.simulation.wire import Wire

Gathering = AllReduceMean | Broadcast | AllToAll | AllGather | Barrier
Done = Callable[[Any], None]


class Handle:
    """A collective that an algorithm has begun and may wait for later.

    The handle keeps the result if it comes first, or else the waiting program.
    """

    def __init__(self, collective: AllReduceMean | NeighbourAllGather) -> None:
        self.collective = collective
        self._result: list[Any] = []
        self._waiting: Done | None = None

    def complete(self, result: Any) -> None:
        """Give the result to the program that waits for it, or keep it for later."""
        if self._waiting is None:
            self._result = [result]
        else:
            self._waiting(result)

    def wait(self, resume: Done) -> None:
        """Call `resume` with the result, either now or as soon as it is there."""
        if self._result:
            resume(self._result[0])
        else:
            self._waiting = resume


class SimulatedCollectives:
    """The collectives of all learners of a simulation.

    A collective begins when the last of its learners joins it. Collectives among the
    same ranks are matched in the order in which each learner yields them.

    Args:
        clock: the simulation's clock.
        network: the network, which says how long a collective takes.
        wire: the numbers and delays of single messages.
        size: the number of learners.
        sent: a function that is called with a rank and the number of bytes it sends.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        wire: Wire,
        size: int,
        sent: Callable[[int, int], None],
    ) -> None:
        self._clock = clock
        self._network = network
        self._wire = wire
        self._everybody = tuple(range(size))
        self._sent = sent
        self._joined: dict[Sequence[int], dict[int, deque[tuple[Gathering, Done]]]]
        self._joined = defaultdict(lambda: defaultdict(deque))
        self._gathering: dict[int, deque[tuple[NeighbourAllGather, Done]]]
        self._gathering = defaultdict(deque)
        self._arrived: dict[tuple[int, int], deque[tuple[int, Tensor]]]
        self._arrived = defaultdict(deque)

    def join(self, rank: int, effect: Any, done: Done) -> None:
        """Let a learner take part in a collective.

        Args:
            rank: the learner.
            effect: the collective that it has yielded.
            done: a function that is called with the learner's result.

        Raises:
            RuntimeError: the learners have yielded different collectives.
        """
        if isinstance(effect, NeighbourAllGather):
            self._gather(rank, effect, done)
            return
        ranks = getattr(effect, "ranks", None) or self._everybody
        if rank not in ranks:
            raise RuntimeError(f"learner {rank} yields {_kind(effect)} of {ranks}")
        if isinstance(effect, AllGather) and effect.prepare is not None:
            effect.prepare(len(effect.tensor))
        queues = self._joined[ranks]
        queues[rank].append((effect, done))
        if len(queues) < len(ranks) or not all(queues.values()):
            return
        effects, dones = zip(*(queues[r].popleft() for r in ranks), strict=True)
        _check_equal(ranks, effects)
        when = self._clock.later(self._seconds(ranks, effects[0]))
        for end, finish, result in zip(ranks, dones, _results(effects), strict=True):
            if not isinstance(effects[0], Barrier):
                self._sent(end, effects[0].bytes_sent(len(ranks)))
            self._clock.at(when, partial(finish, result))

    def _seconds(self, ranks: Sequence[int], effect: Gathering) -> float:
        """Return the virtual seconds that a collective among `ranks` takes.

        Means and broadcasts travel along a ring; the other collectives send a message
        between each pair of learners.
        """
        size = len(ranks)
        if size == 1 or isinstance(effect, Barrier):
            return 0.0
        nbytes, network = effect.tensor.nbytes, self._network
        match effect:
            case AllReduceMean():
                return network.all_reduce(ranks, nbytes)
            case Broadcast():
                return network.broadcast(ranks, nbytes)
            case AllToAll():
                return network.all_pairs(ranks, nbytes / size)
            case AllGather():
                return network.all_pairs(ranks, nbytes)

    def _gather(self, rank: int, effect: NeighbourAllGather, done: Done) -> None:
        """Send a learner's tensor to its peers.

        The messages share the bandwidth of the learner's link, so each of them takes as
        long as one with the bytes of all.
        """
        nbytes = effect.bytes_sent(len(self._everybody))
        self._sent(rank, nbytes)
        for peer in effect.peers:
            when = self._wire.arrival(rank, peer, nbytes)
            self._arrived[rank, peer].append((when, effect.tensor.clone()))
        self._gathering[rank].append((effect, done))
        for receiver in (rank, *effect.peers):
            self._complete(receiver)

    def _complete(self, rank: int) -> None:
        """Give `rank` the result of its oldest gather if all its peers have sent."""
        if not self._gathering[rank]:
            return
        effect, done = self._gathering[rank][0]
        inboxes = [self._arrived[peer, rank] for peer in effect.peers]
        if not all(inboxes):
            return
        self._gathering[rank].popleft()
        times, tensors = zip(*(inbox.popleft() for inbox in inboxes), strict=True)
        when = max(self._clock.now, *times)
        self._clock.at(when, partial(done, torch.stack(tensors)))


def _results(effects: Sequence[Gathering]) -> list[Any]:
    """Return the result of each learner."""
    match effects[0]:
        case Barrier():
            pausing = any(isinstance(e, Barrier) and e.pausing for e in effects)
            members = Members.everybody(len(effects))
            return [Meeting(pausing, members)] * len(effects)
        case AllToAll():
            tensors = _tensors(effects)
            return _deliver(effects, torch.stack(tensors, 1))
        case AllGather():
            everything = torch.stack(_tensors(effects))
            return _deliver(effects, [everything.clone() for _ in effects])
        case AllReduceMean():
            return _overwrite(effects, mean=True)
        case Broadcast():
            return _overwrite(effects, mean=False)


def _deliver(effects: Sequence[Any], results: Iterable[Tensor]) -> list[Tensor]:
    """Write the result of each learner to the tensor `into` of its effect, if any."""
    delivered = []
    for effect, result in zip(effects, results, strict=True):
        place = result if effect.into is None else effect.into.copy_(result)
        if isinstance(effect, AllToAll) and effect.arrived is not None:
            effect.arrived(place.shape[1])
        delivered.append(place)
    return delivered


def _overwrite(effects: Sequence[Gathering], mean: bool) -> list[Any]:
    tensors = _tensors(effects)
    if len(tensors) == 1:
        return tensors
    if mean:
        result = torch.stack(tensors).sum(0).div_(len(tensors))
    else:
        result = tensors[0].clone()
    return [tensor.copy_(result) for tensor in tensors]


def _tensors(effects: Sequence[Any]) -> list[Tensor]:
    return [effect.tensor for effect in effects]


def _check_equal(ranks: Sequence[int], effects: Sequence[Gathering]) -> None:
    kinds = [_kind(effect) for effect in effects]
    for rank, kind in zip(ranks, kinds, strict=True):
        if kind != kinds[0]:
            raise RuntimeError(
                f"learner {ranks[0]} has come to {kinds[0]}, learner {rank} to {kind}: "
                "all learners must yield the same collectives in the same order"
            )


def _kind(effect: Gathering) -> str:
    name = type(effect).__name__
    if isinstance(effect, Barrier):
        return name
    return f"{name} of {effect.tensor.dtype} {tuple(effect.tensor.shape)}"
