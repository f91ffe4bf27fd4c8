"""The module predicts step times that others have published, from few constants.

The times are those of arXiv 2410.11998, figure 6: a Transformer (big) on WMT14 En-De,
with a fixed batch of 25,000 tokens for all learners together, Adam, and float32
messages. All learners are equally fast and begin together, so the messages of a step
are under way at the same time, and they take as long as the resource that they load
most.

For each cluster the constants are a compute time that is a line in the samples of a
learner (`fixed` and `sample` seconds) and the time of one model through each class of
links: the bus inside a node, the card between nodes, and one connection through it. On
InfiniBand one connection fills the card. One overlap factor of DDP holds for all
clusters. There is no constant for a single method or a single row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args

from espnet_distopt.simulation.cluster_file import StepTime
from espnet_distopt.simulation.collective import all_reduce, tree_all_reduce
from espnet_distopt.simulation.network import Link, Network, Sent, Traffic

Method = Literal["ddp", "sgp", "exp", "aer"]
METHODS: tuple[Method, ...] = get_args(Method)
"""All-reduce (DDP); stochastic gradient push on a one-peer exponential graph;
decentralised Adam on such a graph; and on an alternating exponential ring."""

BATCH = 25_000
"""Tokens of a step of all learners together."""


@dataclass(frozen=True)
class PublishedCluster:
    """A cluster and the milliseconds of a step that were measured on it.

    Attributes:
        name: how tables call it.
        per_node: the number of GPUs of a node, each of which is a learner.
        card: the bytes a second of a node's network card, by its name plate.
        steps: number of learners -> method -> milliseconds.
    """

    name: str
    per_node: int
    card: float
    steps: dict[int, dict[Method, float]]


def _rows(*columns: tuple[int, list[float]]) -> dict[int, dict[Method, float]]:
    return {size: dict(zip(METHODS, values, strict=False)) for size, values in columns}


T4 = PublishedCluster(
    "8 x T4, 100 Gbit/s InfiniBand",
    8,
    12.5e9,
    _rows(
        (16, [372.5, 425.5, 314.8, 312.3]),
        (32, [225.5, 292.4, 178.8, 178.8]),
        (64, [167.3, 235.5, 123.1, 122.2]),
    ),
)
A100 = PublishedCluster(
    "4 x A100, 100 Gbit/s InfiniBand",
    4,
    12.5e9,
    _rows(
        (8, [73.0, 69.4, 63.4, 61.7]),
        (16, [54.8, 53.0, 46.8, 45.8]),
        (32, [51.5, 50.7, 44.7, 43.7]),
    ),
)
A40 = PublishedCluster(
    "4 x A40, 25 Gbit/s Ethernet",
    4,
    3.125e9,
    _rows(
        (8, [166.1, 150.5, 122.8, 122.0]),
        (16, [195.5, 99.9, 97.4, 78.9]),
        (32, [188.5, 112.4, 110.8, 67.9]),
    ),
)


BACKWARD = 2 / 3
"""The backward pass's share of a step: it takes twice as long as the forward pass."""


class Load(NamedTuple):
    """What the messages of a step load, in sizes of the model.

    Attributes:
        card: what passes the network card that is loaded most, in one direction.
        link: what passes the connection between nodes that is loaded most.
        bus: what passes the bus inside a node that is loaded most.
    """

    card: float
    link: float
    bus: float

    def seconds(self, card: float, link: float, bus: float) -> float:
        """Return the time, given the seconds of one model through each of the three."""
        return max(self.card * card, self.link * link, self.bus * bus)


def step_seconds(
    method: Method,
    per_node: int,
    learners: int,
    compute: float,
    card: float,
    link: float,
    bus: float,
    overlap: float,
) -> float:
    """Return the mean seconds of a step.

    Args:
        method: the method.
        per_node: the number of learners of a node.
        learners: the number of learners, N.
        compute: the seconds that a learner computes for a step.
        card: the seconds in which a message of the model's size passes a card alone, in
            as many connections as fill it.
        link: the seconds in which it passes one connection between nodes.
        bus: the seconds in which it passes the bus inside a node alone.
        overlap: the share of DDP's communication that its buckets hide behind the
            backward pass, as far as that is long enough.
    """
    steps = [
        min(load.seconds(card, link, bus) for load in choices)
        for choices in loads(method, per_node, learners)
    ]
    if method == "ddp":
        (seconds,) = steps
        return compute + seconds - min(overlap * seconds, BACKWARD * compute)
    if method == "sgp":  # Its messages are under way when nothing is computed.
        return compute + sum(steps) / len(steps)
    # Those of decentralised Adam are under way during the next step, which waits.
    return sum(max(compute, seconds) for seconds in steps) / len(steps)


@cache
def loads(method: Method, per_node: int, learners: int) -> list[list[Load]]:
    """Return what each step loads until they repeat; NCCL takes the fastest choice."""
    network = Network(per_node=per_node, between=Link(bandwidth=1), card=1, bus=1)
    match method:
        case "ddp":
            return [_all_reduce(network, range(learners))]
        case "sgp":
            rounds = [push(learners, distance) for distance in _doubling(learners)]
        case "exp":
            rounds = [pairs(learners, distance) for distance in _doubling(learners)]
        case "aer":
            groups = per_node, 2 * per_node
            return [_all_reduce(network, range(size)) for size in groups]
    return [[_load(network.traffic(messages))] for messages in rounds]


def _doubling(learners: int) -> list[int]:
    return [2**k for k in range(int(math.log2(learners)))]


def push(learners: int, distance: int) -> list[Sent]:
    """Return the messages of a step in which each learner sends to one ahead of it."""
    return [(rank, (rank + distance) % learners, 1.0) for rank in range(learners)]


def pairs(learners: int, distance: int) -> list[Sent]:
    """Return the messages of a step in which pairs at a distance of 2^k exchange."""
    return [(rank, rank ^ distance, 1.0) for rank in range(learners)]


def _all_reduce(network: Network, ranks: Sequence[int]) -> list[Load]:
    return [_load(of(network, ranks, 1.0)) for of in (all_reduce, tree_all_reduce)]


def _load(traffic: Traffic) -> Load:
    most = {"card sends": 0.0, "sends between": 0.0, "bus": 0.0}
    for resource, nbytes in traffic.load.items():
        assert isinstance(resource, tuple)
        if resource[0] in most:
            most[resource[0]] = max(most[resource[0]], nbytes)
    return Load(most["card sends"], most["sends between"], most["bus"])


Cell = tuple[PublishedCluster, int, Method]
"""A cluster, a number of learners and a method: one published step time."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What is found for a cluster.

    Attributes:
        step: the time of a step that does not communicate.
        card: the seconds in which a message of the model's size passes a node's card.
        link: the seconds in which it passes one connection between nodes.
        bus: the seconds in which it passes the bus inside a node.
        overlap: the share of DDP's communication that hides behind the backward pass.
    """

    step: StepTime
    card: float
    link: float
    bus: float
    overlap: float

    def milliseconds(self, cell: Cell) -> float:
        """Return the step time that the constants predict."""
        cluster, learners, method = cell
        compute = self.step.of(BATCH / learners)
        constants = self.card, self.link, self.bus, self.overlap
        return 1e3 * step_seconds(
            method, cluster.per_node, learners, compute, *constants
        )


@dataclass(frozen=True)
class Calibration:
    """What was found for all clusters, and from which rows.

    Attributes:
        constants: cluster name -> its constants.
        rows: the rows they were found from.
    """

    constants: dict[str, Constants]
    rows: list[Cell]

    def misfit(self) -> float:
        """Return the sum of the squared logarithms of predicted / published."""
        return sum(misfit(self.constants[cell[0].name], [cell]) for cell in self.rows)


OVERLAPS = [tenths / 10 for tenths in range(1, 10)]


def calibrate() -> Calibration:
    """Return the calibration whose overlap factor, in tenths, fits its rows best.

    - T4 and A100: all four methods at the smallest size give card and bus, and with the
      alternating ring at the second size they give the line of the compute time.
    - A40: its three rows of DDP give what one connection carries, and a factor on the
      compute time of an A100. One row of the exponential graph, where four messages
      pass a card at once, gives the card. Its GPUs have no NVLink, as the T4, whose bus
      is taken.
    """
    found = [with_overlap(overlap) for overlap in OVERLAPS]
    return min(found, key=Calibration.misfit)


def with_overlap(overlap: float) -> Calibration:
    """Return the calibration with a given overlap factor."""
    constants, rows = dict[str, Constants](), list[Cell]()
    for cluster in (T4, A100):
        cells = _cells(cluster)
        constants[cluster.name] = _fit(cluster, cells, overlap)
        rows += cells
    cells = [*((A40, learners, "ddp") for learners in A40.steps), (A40, 16, "exp")]
    of_a100, bus = constants[A100.name].step, constants[T4.name].bus

    def of(point: list[float]) -> Constants:
        factor, link, card = map(math.exp, point)
        fixed, sample = of_a100.fixed * factor, of_a100.sample * factor
        step = StepTime(fixed=fixed, sample=sample)
        return Constants(step=step, card=card, link=link, bus=bus, overlap=overlap)

    start = [0.5, math.log(0.08), math.log(0.04)]
    point = search(lambda point: misfit(of(point), cells), start)
    constants[A40.name] = of(point)
    return Calibration(constants, rows + cells)


def _cells(cluster: PublishedCluster) -> list[Cell]:
    smallest, second, _ = sorted(cluster.steps)
    return [
        *((cluster, smallest, method) for method in METHODS),
        (cluster, second, "aer"),
    ]


def _fit(cluster: PublishedCluster, cells: list[Cell], overlap: float) -> Constants:
    """Return the constants of a cluster that fit best; the search begins at several."""

    def of(point: list[float]) -> Constants:
        fixed, sample, card, bus = map(math.exp, point)
        step = StepTime(fixed=fixed, sample=sample)
        return Constants(step=step, card=card, link=card, bus=bus, overlap=overlap)

    smallest = min(cluster.steps)
    step = cluster.steps[smallest]["aer"] * 1e-3
    tries = [
        [step * share, step * (1 - share) * smallest / BATCH, card, bus]
        for share in (0.2, 0.6)
        for card in (0.002, 0.02)
        for bus in (0.002, 0.02)
    ]
    points = [
        search(lambda point: misfit(of(point), cells), [math.log(x) for x in each])
        for each in tries
    ]
    return min(map(of, points), key=lambda constants: misfit(constants, cells))


def misfit(constants: Constants, cells: list[Cell]) -> float:
    """Return the sum of the squared logarithms of predicted / published."""
    ratios = (
        constants.milliseconds(cell) / cell[0].steps[cell[1]][cell[2]] for cell in cells
    )
    return sum(math.log(ratio) ** 2 for ratio in ratios)


def search(loss: Callable[[list[float]], float], start: list[float]) -> list[float]:
    """Return logarithms of constants at which `loss` is least nearby.

    One coordinate after another is moved by a step, which is halved when nothing
    becomes better. A constant on which the loss does not depend stays where it starts.
    """
    point, best, step = start, loss(start), 0.5
    while step > 1e-4:
        moved = False
        for place in range(len(point)):
            for sign in (1, -1):
                trial = [*point]
                trial[place] += sign * step
                value = loss(trial)
                if value < best - 1e-12:
                    point, best, moved = trial, value, True
        if not moved:
            step /= 2
    return point
