"""The order in which the learners of AD-PSGD step and exchange, from the simulation.

The product's simulation runs the real protocol under a virtual clock. It is recorded
without computing any gradient, on a model of one parameter. So pairs, and how long an
exchange lasts in steps of its learners, are the simulation's own.

A record is replayed in waves. In a wave some learners make a step each, all at once,
and after that pairs exchange, as many at once as have no learner in common. Each
learner finds the same steps and exchanges before any of its own as in the record. So
the result is that of the simulation, to rounding.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.simulation import Compute, Simulation, VirtualLearner

SPREAD = 0.2
"""Sigma of the log-normal factor on the seconds of a step."""


class Stepped(NamedTuple):
    """A learner has ended a step; `kept` says that its copy has not been renewed."""

    rank: int
    kept: bool


class Begun(NamedTuple):
    """Two learners begin an exchange of their copies."""

    active: int
    passive: int


class Ended(NamedTuple):
    """A learner moves its copy by what its exchange has brought."""

    rank: int


Event = Stepped | Begun | Ended


class Recorder:
    """Keeps the events of a simulation of `adpsgd` or `hadpsgd`.

    Attributes:
        events: the events, in the order of time. A node of `hadpsgd` counts as one
            learner, and has the number of the node.

    Args:
        simulation: the simulation, which has not started.
        per_node: the number of learners on each node.
    """

    def __init__(self, simulation: Simulation, per_node: int = 1) -> None:
        self.events: list[Event] = []
        self._per_node = per_node
        for virtual in simulation.learners[::per_node]:
            self._watch(virtual)
        gossip = simulation.engine.gossip
        exchange = gossip.exchange

        def recorded(rank: int, offer: Any) -> int:
            nbytes = exchange(rank, offer)
            if nbytes:
                self.events.append(Begun(rank // per_node, offer.peer // per_node))
            return nbytes

        gossip.exchange = recorded  # type: ignore[method-assign]

    def _watch(self, virtual: VirtualLearner) -> None:
        algorithm: Any = virtual.algorithm
        snapshot = algorithm.snapshot
        rank, counted = virtual.learner.rank // self._per_node, 0

        def publishing(method: Callable[[], Any]) -> Callable[[], Any]:
            def recorded() -> Any:
                nonlocal counted
                result = method()
                if virtual.learner.steps > counted:
                    counted = virtual.learner.steps
                    self.events.append(Stepped(rank, snapshot.outdated))
                return result

            return recorded

        snapshot.publish = publishing(snapshot.publish)
        snapshot.take = publishing(snapshot.take)
        end = snapshot.end_exchange

        def ended(*tensors: Tensor) -> Generator[Any, Any, None]:
            self.events.append(Ended(rank))
            yield from end(*tensors)

        snapshot.end_exchange = ended


class Exchanges(NamedTuple):
    """Exchanges of which no two have a learner in common.

    Attributes:
        pairs: the learners of exchanges that end at once.
        begun: number, active and passive learner of those that last.
        ended: number, learner and sign of what ends of those.
    """

    pairs: list[tuple[int, int]]
    begun: list[tuple[int, int, int]]
    ended: list[tuple[int, int, float]]


@dataclass
class Wave:
    """Steps of some learners, and then exchanges.

    Attributes:
        rows: the learners that step, ascending (n,).
        kept: those of them whose copies are not renewed.
        exchanges: the exchanges after that, in their order.
    """

    rows: Tensor
    kept: Tensor
    exchanges: list[Exchanges]


@dataclass
class _Wave:
    """A wave that is being filled."""

    rows: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    pairs: dict[int, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    begun: dict[int, list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ended: dict[int, list[tuple[int, int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def waves(records: Sequence[Sequence[Event]], size: int) -> list[Wave]:
    """Return the waves of several trainings with N learners each, side by side.

    Args:
        records: the events of each training.
        size: N. Learner i of training t becomes t N + i.
    """
    found: dict[int, _Wave] = defaultdict(_Wave)
    number = 0
    for training, events in enumerate(records):
        number = _fill(found, events, training * size, number)
    return [_complete(found[w]) for w in range(max(found, default=-1) + 1)]


def _fill(
    found: dict[int, _Wave], events: Sequence[Event], offset: int, number: int
) -> int:
    """Put the events of a training into waves; return the next exchange's number.

    A learner is at a place: the wave of its last step, and the number of exchanges that
    it waits for in that wave. Events come after what their learners have done.
    """
    lasting = _lasting(events)
    places: dict[int, tuple[int, int]] = defaultdict(lambda: (-1, 0))
    open_: dict[int, tuple[int, float, int]] = {}
    for n, event in enumerate(events):
        match event:
            case Stepped(rank, kept):
                wave = places[rank][0] + 1
                places[rank] = wave, 0
                found[wave].rows.append(rank + offset)
                if kept:
                    found[wave].kept.append(rank + offset)
            case Begun(a, p):
                wave, turn = max(places[a], places[p])
                places[a] = places[p] = wave, turn + 1
                if n not in lasting:
                    found[wave].pairs[turn].append((a + offset, p + offset))
                    continue
                found[wave].begun[turn].append((number, a + offset, p + offset))
                open_[a], open_[p] = (number, 1.0, n), (number, -1.0, n)
                number += 1
            case Ended(rank):
                if rank not in open_:
                    continue
                its, sign, _ = open_.pop(rank)
                wave, turn = places[rank]
                places[rank] = wave, turn + 1
                found[wave].ended[turn].append((its, rank + offset, sign))
    return number


def _lasting(events: Sequence[Event]) -> set[int]:
    """Return the places of exchanges within which one of their learners steps."""
    found: set[int] = set()
    open_: dict[int, int] = {}
    for n, event in enumerate(events):
        match event:
            case Begun(a, p):
                open_[a] = open_[p] = n
            case Stepped(rank, _) if rank in open_:
                found.add(open_[rank])
            case Ended(rank):
                del open_[rank]
    return found


def _complete(wave: _Wave) -> Wave:
    turns = range(max([*wave.pairs, *wave.begun, *wave.ended], default=-1) + 1)
    exchanges = [
        Exchanges(
            wave.pairs[turn],
            wave.begun[turn],
            wave.ended[turn],
        )
        for turn in turns
    ]
    rows = torch.tensor(sorted(wave.rows), dtype=torch.long)
    return Wave(rows, torch.tensor(wave.kept, dtype=torch.long), exchanges)


@functools.lru_cache(maxsize=64)
def record(
    algorithm: str,
    learners: int,
    steps: int,
    seed: int,
    options: tuple[tuple[str, Any], ...] = (),
) -> tuple[Event, ...]:
    """Return what happens in a training, of whose gradients nothing is known.

    Args:
        algorithm: `adpsgd` or `hadpsgd`.
        learners: the number of learners.
        steps: the steps of each learner.
        seed: the seed of the durations of steps.
        options: (name, value) of the algorithm's options.
    """

    def learner(rank: int) -> VirtualLearner:
        model = nn.Linear(1, 1, bias=False)
        optimizer = SGD(model.parameters(), 0.0)
        return VirtualLearner(
            model, optimizer, None, algorithm, rank, learners, **dict(options)
        )

    compute = Compute(seconds=1, spread=SPREAD, seed=seed)
    simulation = Simulation([learner(r) for r in range(learners)], compute, seed=seed)
    recorder = Recorder(simulation, dict(options).get("per_node", 1))
    simulation.start()
    simulation.epoch(steps)
    return tuple(recorder.events)
