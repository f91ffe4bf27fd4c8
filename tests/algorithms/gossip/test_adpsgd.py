"""AD-PSGD: conservation, pair averages, staleness, endings.

The vectors are AD1 to AD6 of docs/algorithms/gossip.md, and SD4 of
docs/algorithms/synchronous.md. Every exchange is an average of two: random schedules
check that after each event (`tests.simulation.invariants`).
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from espnet_distopt.core.effects import Barrier
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Compute, Link, Network, Simulation
from tests import virtual
from tests.replicas import Point, Replica, correct, run, several
from tests.virtual import started


def points(starts: list[float], lr: float = 1.0, **options: Any) -> list[Replica]:
    make = partial(SGD, lr=lr)
    replicas = several("adpsgd", lambda: Point([0.0]), make, len(starts), **options)
    place(replicas, starts)
    return replicas


def place(replicas: list[Replica], starts: Iterable[float]) -> None:
    for replica, x in zip(replicas, starts, strict=True):
        algorithm: Any = replica.algorithm
        replica.learner.params.fill_(x)
        algorithm.snapshot.publish()


def values(replicas: list[Replica]) -> Tensor:
    return torch.cat([r.learner.params for r in replicas])


def in_flight(before: list[float], after: list[float]) -> list[float]:
    """Two learners at 1 and 3 exchange; they step meanwhile, and after answering."""
    replicas = points([1.0, 3.0])
    published: list[Any] = [r.algorithm.snapshot for r in replicas]  # type: ignore[attr-defined]
    sent = published[0].begin_exchange().clone()
    run(*(r.step([g]) for r, g in zip(replicas, before, strict=True)))
    answer = published[1].begin_exchange().clone()
    correct(published[1], sent.clone())
    run(replicas[1].step([after[1]]))
    correct(published[0], answer)
    run(replicas[0].step([after[0]]))
    total: list[float] = values(replicas).tolist()
    return total


def test_ad1_no_step_is_lost_during_an_exchange() -> None:
    """Averaging live weights would lose half of the active learner's step: 1.9, 2."""
    assert in_flight([0.2, 0.0], [0.0, 0.0]) == pytest.approx([1.8, 2.0], rel=1e-15)


def test_ad2_neither_of_both_sides() -> None:
    x = in_flight([0.2, 0.4], [0.0, 0.1])
    assert x == pytest.approx([1.6, 1.7], rel=1e-15)
    assert sum(x) == pytest.approx(3.3, rel=1e-15)


def test_a_passive_answers_twice_with_different_values() -> None:
    """Without a step in between: the second answer knows of the first exchange."""
    replicas = points([0.0, 8.0, 0.0, 0.0])
    published: Any = replicas[1].algorithm.snapshot  # type: ignore[attr-defined]
    assert published.begin_exchange().item() == 8
    correct(published, torch.zeros(1, dtype=torch.float64))
    assert published.begin_exchange().item() == 4
    correct(published, torch.zeros(1, dtype=torch.float64))
    assert replicas[1].x == [8]  # the training side sees nothing until its step ends
    run(replicas[1].step([0.0]))
    assert replicas[1].x == [2]


class Scripted:
    """Stands for the random choice of neighbours."""

    def __init__(self, *peers: int) -> None:
        self.peers = list(peers)

    def choice(self, _: object) -> int:
        return self.peers.pop(0)


def test_ad4_lockstep_is_synchronous_gossip_of_pairs() -> None:
    """Vector SD4: gradients at x, then pair averages of x, alternating pairs."""
    trace: dict[tuple[int, int], float] = {}

    def recorded(model: Point, rank: int) -> Callable[[int], float]:
        descend = virtual.along(model, [rank + 1.0] * 5)

        def record(step: int) -> float:
            trace[rank, step] = model.x.item()
            return descend(step)

        return record

    learners = virtual.points("adpsgd", 4, recorded, at=[0.0])
    # The first exchange is of the first step's ends.
    for rank, peers in ((0, (3, 1, 3, 1, 3)), (2, (1, 3, 1, 3, 1))):
        algorithm: Any = learners[rank].algorithm
        algorithm._choice = Scripted(*peers)
    virtual.started(learners, Compute(seconds=1)).epoch(5)
    expected = [
        [-0.1, -0.2, -0.3, -0.4],
        [-0.35, -0.45, -0.55, -0.65],
        [-0.5, -0.6, -0.9, -1.0],
        [-0.85, -0.95, -1.05, -1.15],
    ]
    for step, row in enumerate(expected, 1):
        assert [trace[rank, step] for rank in range(4)] == pytest.approx(row)


def test_training_converges_to_a_common_optimum() -> None:
    bowls = virtual.bowls(*[(1.0, 3.0)] * 4)
    learners = virtual.points("adpsgd", 4, bowls, partial(SGD, lr=0.05))
    virtual.started(learners, Compute(spread=1)).epoch(400)
    for learner in learners:
        assert virtual.x(learner) == pytest.approx([3.0] * 2, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_learner_may_wait_for_others_that_are_steps_behind(size: int) -> None:
    """It makes no step then, so that it does not answer those who invite it."""
    for seed in range(6):
        simulation, starts = dyadic(size, seed, max_staleness=3)

        def between_barriers(each: virtual.VirtualLearner) -> Any:
            for _ in range(5):
                yield from each.train(4, simulation.compute, 0)  # noqa: B023
                yield Barrier()
            yield from each.epoch(0, simulation.compute, 0)  # noqa: B023

        programs = map(between_barriers, simulation.learners)
        simulation.engine.run(programs, lambda: None, in_epoch=True)
        assert sum(v.metrics()["exchanges"] for v in simulation.learners) > 0
        assert sum(virtual.x(v)[0] for v in simulation.learners) == sum(starts)


def test_metrics_are_since_the_last_call_and_the_histogram_is_of_all() -> None:
    learners = virtual.points("adpsgd", 2, virtual.towards_rank, max_staleness=3)
    simulation = virtual.started(learners, Compute(spread=1))
    histogram = virtual.published(learners[0]).staleness
    seen = histogram.copy()
    for _ in range(3):
        simulation.epoch(10)
        new, seen = histogram - seen, histogram.copy()
        figures = learners[0].algorithm.metrics()
        assert figures["exchanges"] == new.total() > 0
        assert figures["staleness"] == sum(k * v for k, v in new.items()) / new.total()
        assert figures["staleness_max"] == max(new) <= 3
        assert learners[0].algorithm.metrics() == {"exchanges": 0.0}


@pytest.mark.parametrize("from_consensus", [False, True])
def test_consensus_is_the_mean_and_may_be_where_training_goes_on(
    from_consensus: bool,
) -> None:
    replicas = points([1.0, 2.0, 6.0, 7.0], from_consensus=from_consensus)
    means = run(*(r.algorithm.consensus(r.learner) for r in replicas))
    assert [m.item() for m in means] == [4.0] * 4
    kept = [4.0] * 4 if from_consensus else [1.0, 2.0, 6.0, 7.0]
    assert values(replicas).tolist() == kept
    assert [r.algorithm.snapshot.begin_exchange().item() for r in replicas] == kept  # type: ignore[attr-defined]


def test_ad3_a_random_pair_contracts_the_mean_square_by_one_nth() -> None:
    """Complete bipartite graph, uniform edge: 1 - 1/N an event, for N = 8.

    The start is one of the slowest directions: each colour's mean is zero.
    """
    source, replicas = random.Random(0), points([0.0] * 8, topology="random")
    algorithms: list[Any] = [replica.algorithm for replica in replicas]
    left = []
    for _ in range(3000):
        even, odd = (source.uniform(-1, 1) for _ in range(2))
        starts = [even, odd, -even, -odd, 0.0, 0.0, 0.0, 0.0]
        place(replicas, starts)
        active = source.randrange(0, 8, 2)
        passive = algorithms[active]._choice.choice(
            algorithms[active].colours.neighbours
        )
        pair = [algorithms[rank].snapshot for rank in (active, passive)]
        sent = [published.begin_exchange().clone() for published in pair]
        for published, received in zip(pair, reversed(sent), strict=True):
            correct(published, received)
            published.publish()
        energy = values(replicas).square().sum().item()
        left.append(energy / sum(x * x for x in starts))
    assert sum(left) / len(left) == pytest.approx(1 - 1 / 8, abs=0.01)


@pytest.mark.parametrize(("size", "topology"), [(16, "ring"), (17, "random")])
def test_a_long_ring_is_not_the_default(size: int, topology: str) -> None:
    starts = [float(rank) for rank in range(size)]
    by_default, given = points(starts), points(starts, topology=topology)
    other = points(starts, topology="random" if topology == "ring" else "ring")
    assert neighbours(by_default) == neighbours(given) != neighbours(other)


def neighbours(replicas: list[Replica]) -> list[tuple[int, ...]]:
    algorithms: list[Any] = [replica.algorithm for replica in replicas]
    return [algorithm.colours.neighbours for algorithm in algorithms]


def test_an_unknown_topology_is_refused() -> None:
    with pytest.raises(
        InputError,
        match="topology must be one of ring, random, randomized_ring or ",
    ):
        points([0.0, 0.0], topology="x")


@pytest.mark.parametrize(("size", "rings"), [(8, 100), (9, 100), (64, 20)])
def test_a_randomized_ring_pairs_all_learners_in_each_turn(
    size: int, rings: int
) -> None:
    replicas = points([0.0] * size, topology="randomized_ring", seed=3)
    colours: list[Any] = [r.algorithm.colours for r in replicas]  # type: ignore[attr-defined]
    source = random.Random(0)
    seen = set()
    for _ in range(rings):
        turns = [
            [c.choose(source) for c in colours if c.active],
            [c.choose(source) for c in colours if c.active],
        ]
        for invited in turns:
            assert len(set(invited)) == size // 2
        actives = range(0, size, 2)
        pairs = [pair for turn in turns for pair in zip(actives, turn, strict=True)]
        assert size % 2 or is_one_ring(pairs)
        seen.add(tuple(turns[0]))
    assert len(seen) > min(rings, math.factorial(size // 2)) * 0.9


def is_one_ring(edges: list[tuple[int, int]]) -> bool:
    """Whether edges join all their ends in one circle, each end twice."""
    near: dict[int, list[int]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    at, before, steps = edges[0][0], -1, 0
    while True:
        at, before = next(n for n in near[at] if n != before), at
        steps += 1
        if at == edges[0][0]:
            return steps == len(near) and {len(n) for n in near.values()} == {2}


def test_in_step_a_randomized_ring_halves_the_mean_square_in_a_turn() -> None:
    """Each colour's own differences; those between two colours are gone at once."""
    size, left, source = 16, [], random.Random(1)
    replicas = points([0.0] * size, topology="randomized_ring")
    colours: list[Any] = [r.algorithm.colours for r in replicas]  # type: ignore[attr-defined]
    for _ in range(2000):
        x = [source.gauss(0, 1) for _ in range(size)]
        for first in (0, 1):
            mean = sum(x[first::2]) / (size // 2)
            x[first::2] = [value - mean for value in x[first::2]]
        before = sum(value * value for value in x)
        for active in range(0, size, 2):
            passive = colours[active].choose(source)
            x[active] = x[passive] = (x[active] + x[passive]) / 2
        left.append(sum(value * value for value in x) / before)
    assert sum(left) / len(left) == pytest.approx(1 / 2, abs=0.01)


CLUSTERS = [(size, topology) for topology in ("ring", "random") for size in range(1, 8)]


def dyadic(size: int, seed: int, **options: Any) -> tuple[Simulation, list[float]]:
    """Learners at integers, in a random cluster; lr = 0."""
    source = random.Random(seed)
    learners = virtual.points(
        "adpsgd", size, virtual.towards_rank, seed=seed, **options
    )
    stragglers = {rank: 1 + 9 * source.random() for rank in range(size // 2)}
    simulation = started(
        learners,
        Compute(seconds=1, spread=1, seed=seed, slowdown=stragglers),
        Network(between=Link(latency=10 ** source.uniform(-3, 1)), spread=1, seed=seed),
    )
    starts = [float(source.randrange(-64, 64)) for _ in range(size)]
    virtual.place(learners, starts)
    return simulation, starts


@pytest.mark.parametrize(("size", "topology"), CLUSTERS)
def test_ad3_sum_is_conserved_exactly(size: int, topology: str) -> None:
    """Integers after at most 32 halvings fit into a float64: nothing is rounded."""
    mixed = 0.0
    for seed in range(6):
        simulation, starts = dyadic(size, seed, topology=topology, max_staleness=3)
        for steps in (5, 3):
            simulation.epoch(steps)
            assert sum(virtual.x(v)[0] for v in simulation.learners) == sum(starts)
        mixed += sum(v.metrics()["exchanges"] for v in simulation.learners)
    assert mixed > 6 * size or size == 1


@pytest.mark.parametrize(("size", "topology"), CLUSTERS)
def test_ad5_random_clusters_come_to_an_end(size: int, topology: str) -> None:
    """Random steps and messages, stragglers, uneven and empty epochs, odd numbers."""
    for seed in range(6):
        source = random.Random(f"ends {seed}")
        simulation, _ = dyadic(size, seed, topology=topology, max_staleness=2)
        epochs = [[source.choice([0, 1, 2, 7]) for _ in range(size)] for _ in range(3)]
        for steps in epochs:
            simulation.epoch(steps)
            assert not simulation.in_flight
        done = [virtual_.learner.steps for virtual_ in simulation.learners]
        assert done == [sum(column) for column in zip(*epochs, strict=True)]
        figures = [v.metrics()["exchanges"] for v in simulation.learners]
        actives = simulation.learners[0].algorithm.colours.actives  # type: ignore[attr-defined]
        invited = sum(figures[rank] for rank in actives)
        assert invited == sum(figures) / 2  # each exchange has two ends
        published = [virtual.published(v) for v in simulation.learners]
        assert all(max(p.staleness, default=0) <= 2 for p in published)


def relative_throughput(
    name: str, slowdown: float, steps: Sequence[int], **options: Any
) -> tuple[float, Simulation]:
    """Steps per virtual second, one of the learners slower, beside none slower."""
    size = len(steps)
    simulation = started(
        virtual.points(name, size, virtual.towards_rank, **options),
        Compute(seconds=1, slowdown={size // 2: slowdown}),
    )
    simulation.epoch(steps)
    record = simulation.record
    return len(record) / record[-1].seconds / size, simulation


@pytest.mark.parametrize(
    ("slowdown", "topology"), [(2, "ring"), (10, "random"), (100, "ring")]
)
def test_ad6_a_straggler_slows_adpsgd_by_its_own_steps_only(
    slowdown: int, topology: str
) -> None:
    """Everybody trains equally long; the bound is (N - 1 + 1/f) / N, with N = 16."""
    steps = [max(slowdown, 20)] * 16
    steps[8] //= slowdown
    relative, simulation = relative_throughput(
        "adpsgd", slowdown, steps, topology=topology
    )
    assert relative == pytest.approx((16 - 1 + 1 / slowdown) / 16, rel=0.01)
    for rank in set(range(16)) - {8}:
        seconds = [s.seconds for s in simulation.record if s.rank == rank]
        assert len(seconds) / seconds[-1] >= 0.9
    ages = [age for v in simulation.learners for age in virtual.published(v).staleness]
    assert max(ages) <= 16


@pytest.mark.parametrize("name", ["allreduce", "dpsgd"])
@pytest.mark.parametrize("slowdown", [2, 10, 100])
def test_ad6_a_straggler_slows_synchronous_learners_to_its_pace(
    name: str, slowdown: int
) -> None:
    relative, _ = relative_throughput(name, slowdown, [10] * 16)
    assert relative == pytest.approx(1 / slowdown, rel=0.05)


def test_one_learner_keeps_no_copies() -> None:
    (learner,) = virtual.points("adpsgd", 1, virtual.towards_rank)
    assert virtual.published(learner).begin_exchange().numel() == 0
