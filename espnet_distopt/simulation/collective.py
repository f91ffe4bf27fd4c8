"""The module carries out the collectives of a simulation.

It waits until all learners of a collective have yielded it, lets its messages load the
network, and gives each learner its result when they have passed. A collective is one
flow with the load of all its messages, because the messages of a ring or a tree wait
for each other: all go on at the pace of the slowest resource.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Barrier,
    Broadcast,
    NeighbourAllGather,
    Ranks,
)
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.network import Network, Sent, Traffic
from espnet_distopt.simulation.wire import Wire

Gathering = AllReduceMean | Broadcast | AllToAll | AllGather | Barrier


def results_of(effects: Sequence[Gathering], members: Members) -> list[Any]:
    """Return the result of each learner."""
    match effects[0]:
        case Barrier():
            pausing = any(isinstance(e, Barrier) and e.pausing for e in effects)
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


def check_equal(ranks: Sequence[int], effects: Sequence[Gathering]) -> None:
    """Check that learners have yielded collectives of one kind and shape.

    Raises:
        RuntimeError: they have not.
    """
    kinds = [kind_of(effect) for effect in effects]
    for rank, kind in zip(ranks, kinds, strict=True):
        if kind != kinds[0]:
            raise RuntimeError(
                f"learner {ranks[0]} has come to {kinds[0]}, learner {rank} to {kind}: "
                "all learners must yield the same collectives in the same order"
            )


def kind_of(effect: Gathering) -> str:
    """Return a phrase that says which collective it is, of which tensor."""
    name = type(effect).__name__
    if isinstance(effect, Barrier):
        return name
    return f"{name} of {effect.tensor.dtype} {tuple(effect.tensor.shape)}"


class Outcome(NamedTuple):
    """What a collective has brought to one of its learners.

    Attributes:
        result: the result of the effect; None if the collective was dropped.
        members: the members that took part, or those of whom none is lost; None if the
            collective is not of a group.
    """

    result: Any
    members: Members | None = None


Done = Callable[[Outcome], None]


class Handle:
    """A collective that an algorithm has begun and may wait for later.

    The handle keeps the outcome if it comes first, or else the waiting program.
    """

    def __init__(self, collective: AllReduceMean | NeighbourAllGather) -> None:
        self.collective = collective
        self._outcome: list[Outcome] = []
        self._waiting: Done | None = None

    def complete(self, outcome: Outcome) -> None:
        """Give the outcome to the program that waits for it, or keep it for later."""
        if self._waiting is None:
            self._outcome = [outcome]
        else:
            self._waiting(outcome)

    def wait(self, resume: Done) -> None:
        """Call `resume` with the outcome, either now or as soon as it is there."""
        if self._outcome:
            resume(self._outcome[0])
        else:
            self._waiting = resume


@dataclass(eq=False)
class Operation:
    """A collective that all its learners have joined.

    Attributes:
        ranks: the group that its effects name.
        parts: rank -> the effect that it has yielded, and what to call.
    """

    ranks: Ranks
    parts: dict[int, tuple[Gathering, Done]]


@dataclass(eq=False)
class Message:
    """A message of a neighbours' gather, in the order in which its sender sent it.

    Attributes:
        tensor: a copy of what was sent.
        arrived: whether the whole of it has arrived.
    """

    tensor: Tensor
    arrived: bool = False


class SimulatedCollectives:
    """The collectives of all learners of a simulation.

    A collective begins when the last of its learners joins it. Collectives among the
    same ranks are matched in the order in which each learner yields them. It ends for
    all its learners at the same time, and only if none of them is down then. If one of
    them is excluded before, a collective of all members is repeated among the others,
    and one of given ranks is dropped: nothing has been written until then. (Real
    processes repeat only those slices of a large average that one of them lacks.)
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        wire: Wire,
        members: Callable[[], Members],
        down: Callable[[int], bool],
        sent: Callable[[int, int], None],
    ) -> None:
        self._clock = clock
        self._network = network
        self._wire = wire
        self._members = members
        self._down = down
        self._sent = sent
        self._joined: dict[Ranks, dict[int, deque[tuple[Gathering, Done]]]]
        self._joined = defaultdict(lambda: defaultdict(deque))
        self._under_way: list[Operation] = []
        self._held: list[Operation] = []
        self._gathering: dict[int, deque[tuple[NeighbourAllGather, Done]]]
        self._gathering = defaultdict(deque)
        self._inboxes: dict[tuple[int, int], deque[Message]] = defaultdict(deque)

    def join(self, rank: int, effect: Any, done: Done) -> None:
        """Let a learner take part in a collective.

        Raises:
            RuntimeError: the learners have yielded different collectives.
        """
        if isinstance(effect, NeighbourAllGather):
            self._gather(rank, effect, done)
            return
        ranks = getattr(effect, "ranks", None)
        if rank not in (ranks or self._members().ranks):
            raise RuntimeError(f"learner {rank} yields {kind_of(effect)} of {ranks}")
        if isinstance(effect, AllGather) and effect.prepare is not None:
            effect.prepare(len(effect.tensor))
        self._joined[ranks][rank].append((effect, done))
        if ranks and not set(ranks) <= set(self._members().ranks):
            self._drop(self._joined[ranks])
        else:
            self._begin(ranks)

    def _begin(self, ranks: Ranks) -> bool:
        """Begin the next collective of a group if all its learners have joined it.

        Returns whether it has begun.
        """
        queues, group = self._joined[ranks], ranks or self._members().ranks
        if len(queues) < len(group) or not all(queues[rank] for rank in group):
            return False
        operation = Operation(ranks, {rank: queues[rank].popleft() for rank in group})
        effects = [effect for effect, _ in operation.parts.values()]
        check_equal(group, effects)
        self._under_way.append(operation)
        first, traffic = effects[0], Traffic({}, 0.0)
        if not isinstance(first, Barrier):
            kind: Any = type(first)
            nbytes = first.tensor.nbytes
            traffic = traffic_of(self._network, tuple(group), kind, nbytes)
        self._wire.begin(traffic, partial(self._end, operation))
        return True

    def _end(self, operation: Operation) -> None:
        """Give all learners their results, unless one of them is down or dead."""
        if operation not in self._under_way:
            return
        group = tuple(operation.parts)
        if any(map(self._down, group)):
            self._held.append(operation)
            return
        self._under_way.remove(operation)
        effects, dones = zip(*operation.parts.values(), strict=True)
        living = self._members()
        if operation.ranks is None:
            living = Members(living.version, group)
        for end, done, result in zip(
            group, dones, results_of(effects, living), strict=True
        ):
            if not isinstance(effects[0], Barrier):
                self._sent(end, effects[0].bytes_sent(len(group)))
            self._clock.at(self._clock.now, partial(done, Outcome(result, living)))

    def look_again(self) -> None:
        """End what waits for a learner that was down; one of them is up again."""
        held, self._held = self._held, []
        for operation in held:
            self._end(operation)

    def lose(self, ranks: Sequence[int]) -> None:
        """Repeat or drop what learners need that are excluded now."""
        for queues in self._joined.values():
            for rank in ranks:
                queues.pop(rank, None)
        for operation in reversed(list(self._under_way)):
            if operation.parts.keys() & set(ranks):
                self._under_way.remove(operation)
                for rank in operation.parts.keys() - set(ranks):
                    self._joined[operation.ranks][rank].appendleft(
                        operation.parts[rank]
                    )
        for group in list(self._joined):
            if group and set(group) & set(ranks):
                self._drop(self._joined[group])
            elif self._members().ranks:
                while self._begin(group):
                    pass
        self.look_again()

    def _drop(self, queues: dict[int, deque[tuple[Gathering, Done]]]) -> None:
        dropped = Outcome(None, self._members())
        for rank in sorted(queues):
            for _, done in queues[rank]:
                self._clock.at(self._clock.now, partial(done, dropped))
            queues[rank].clear()

    def _gather(self, rank: int, effect: NeighbourAllGather, done: Done) -> None:
        """Send a learner's tensor to its peers."""
        nbytes = effect.bytes_sent(len(self._members().ranks))
        self._sent(rank, nbytes)
        for peer in effect.peers:
            message = Message(effect.tensor.clone())
            self._inboxes[rank, peer].append(message)
            arrive = partial(self._arrive, message, peer)
            self._wire.send(rank, peer, effect.tensor.nbytes, arrive)
        self._gathering[rank].append((effect, done))
        self._complete(rank)

    def _arrive(self, message: "Message", receiver: int) -> None:
        message.arrived = True
        self._complete(receiver)

    def _complete(self, rank: int) -> None:
        """Give `rank` the result of its oldest gather if all its messages are there."""
        if not self._gathering[rank]:
            return
        effect, done = self._gathering[rank][0]
        inboxes = [self._inboxes[peer, rank] for peer in effect.peers]
        if not all(inbox and inbox[0].arrived for inbox in inboxes):
            return
        self._gathering[rank].popleft()
        result = effect.into
        if result is None:
            result = effect.tensor.new_empty((len(inboxes), *effect.tensor.shape))
        for row, inbox in zip(result, inboxes, strict=True):
            row.copy_(inbox.popleft().tensor)
        self._clock.at(self._clock.now, partial(done, Outcome(result)))


WithTensor = AllReduceMean | Broadcast | AllToAll | AllGather


@cache
def traffic_of(
    network: Network, ranks: tuple[int, ...], kind: type[WithTensor], nbytes: int
) -> Traffic:
    """Return what a collective among `ranks` costs.

    Means and broadcasts travel along a ring, as in gloo, and so do the rows of an
    all-gather. An all-to-all sends a message between each pair of learners.
    """
    if len(ranks) == 1:
        return Traffic({}, 0.0)
    if kind is AllToAll:
        return all_pairs(network, ranks, nbytes / len(ranks))
    of = {AllReduceMean: all_reduce, Broadcast: broadcast, AllGather: all_gather}[kind]
    return of(network, ranks, nbytes)


def all_reduce(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what a ring all-reduce of `nbytes` among `ranks` costs.

    Each learner sends 2 (N - 1) parts of n / N bytes to the next one, one after the
    other.
    """
    size, steps = len(ranks), 2 * (len(ranks) - 1)
    load, latency = network.traffic(_around(ranks, steps * nbytes / size))
    return Traffic(load, steps * latency)


def tree_all_reduce(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what an all-reduce along two binary trees of nodes costs.

    Half of the bytes take each tree, and the nodes that are leaves of the one are inner
    nodes of the other, so that each node sends about as much (Sanders, Speck and
    Traeff, Parallel Computing 2009). Inside a node, the learners form a chain.
    """
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank // network.per_node, []).append(rank)
    chains = [list(pairwise(chain)) for chain in nodes.values()]
    edges = [(a, b, nbytes) for chain in chains for a, b in chain]
    heads = [chain[0] for chain in nodes.values()]
    for order in (heads, heads[::-1]):
        places = range(1, len(order))
        edges += [(order[at], order[(at - 1) // 2], nbytes / 2) for at in places]
    both = [*edges, *((receiver, sender, size) for sender, receiver, size in edges)]
    depth = max(len(heads).bit_length() - 1, 0) * network.between.latency
    chain = max(len(chain) for chain in chains) * network.inside.latency
    return Traffic(network.traffic(both).load, 2 * (depth + chain))


def broadcast(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what a broadcast costs in which each of `ranks` passes the data on."""
    load, latency = network.traffic(_around(ranks, nbytes)[:-1])
    return Traffic(load, (len(ranks) - 1) * latency)


def all_gather(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what it costs to pass `nbytes` from each of `ranks` around a ring.

    The pieces of a row follow each other closely, and a short row is sent to all at
    once, so that the latency is that of one message.
    """
    return network.traffic(_around(ranks, (len(ranks) - 1) * nbytes))


def all_pairs(network: Network, ranks: Sequence[int], nbytes: float) -> Traffic:
    """Return what it costs if each of `ranks` sends `nbytes` to each other."""
    pairs = [(a, b, nbytes) for a in ranks for b in ranks if a != b]
    return network.traffic(pairs)


def _around(ranks: Sequence[int], nbytes: float) -> list[Sent]:
    """Return the messages of a ring: each of `ranks` sends to the next one."""
    following = [*ranks[1:], ranks[0]]
    return [(a, b, nbytes) for a, b in zip(ranks, following, strict=True)]
