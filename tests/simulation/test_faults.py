"""These tests check that a training survives faults, and what it does meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.simulation import (
    Compute,
    Fault,
    Link,
    Network,
    Simulation,
)
from tests.virtual import (
    NEEDED,
    along_each,
    place,
    points,
    started,
    towards_rank,
    x,
)

SURVIVING = [name for name in ALGORITHMS if ALGORITHMS[name].algorithm.survives]
SURVIVING.append("adasum")  # with the options that it has by itself


def crash(rank: int, at: float) -> Fault:
    return Fault(at=at, rank=rank, kind="crash")


def cluster(
    name: str, faults: Sequence[Fault], size: int = 4, **options: Any
) -> Simulation:
    return started(
        points(name, size, towards_rank, **NEEDED.get(name, {}), **options),
        Compute(seconds=1, spread=0.3),
        Network(between=Link(latency=0.01), spread=0.3),
        faults=faults,
    )


def steps_of(simulation: Simulation) -> list[int]:
    return [v.learner.steps for v in simulation.learners]


@pytest.mark.parametrize("name", SURVIVING)
@pytest.mark.parametrize("rank", range(4))
def test_the_others_make_all_their_steps(name: str, rank: int) -> None:
    simulation, undisturbed = cluster(name, [crash(rank, 10.5)]), cluster(name, [])
    for each in (simulation, undisturbed):
        for _ in range(3):
            each.epoch(10)
            each.consensus()
    node = range(rank // 2 * 2, rank // 2 * 2 + 2)
    lost = set(node) if name == "hadpsgd" else {rank}
    members = tuple(r for r in range(4) if r not in lost)
    assert simulation.engine.members.now.ranks == members
    for other, steps in enumerate(steps_of(simulation)):
        assert steps == 30 if other in members else steps < 15
    # The others lose at most the step in which they notice it.
    assert simulation.seconds < undisturbed.seconds + 2


def test_exchanges_go_on_across_the_gap() -> None:
    """Learners 1 and 3 of a path 0-1-2-3-4 can only meet by way of 2."""
    simulation = cluster("adpsgd", [crash(2, 0.5)], size=5)
    place(simulation.learners, [0.0, 0.0, 100.0, 1.0, 1.0])
    simulation.epoch(40)
    values = [x(v)[0] for v in simulation.learners]
    del values[2]
    assert max(values) - min(values) < 1e-3
    assert sum(values) == pytest.approx(2.0)


def test_a_colour_that_has_died_out_is_dealt_anew_in_the_next_epoch() -> None:
    simulation = cluster("adpsgd", [crash(1, 0.5), crash(3, 0.5)])
    place(simulation.learners, [0.0, 100.0, 1.0, 100.0])
    simulation.epoch(10)
    assert [x(simulation.learners[rank])[0] for rank in (0, 2)] == [0.0, 1.0]
    simulation.epoch(10)
    for rank in (0, 2):
        assert x(simulation.learners[rank])[0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["adpsgd", "bmuf"])
def test_a_short_silence_loses_nobody(name: str) -> None:
    silent = Fault(at=5.5, rank=1, kind="silence", seconds=20)
    simulation = cluster(name, [silent])
    simulation.epoch(10)
    assert steps_of(simulation) == [10] * 4
    assert simulation.engine.members.now.version == 0
    assert not [s for s in simulation.record if s.rank == 1 and 5.5 < s.seconds < 25.5]


@pytest.mark.parametrize("name", ["adpsgd", "bmuf"])
def test_who_returns_too_late_has_no_part_in_it(name: str) -> None:
    """Learner 1 comes back with parameters of 1e6, and the others stay below 10."""
    silent = Fault(at=5.5, rank=1, kind="silence", seconds=31)
    options = {"max_staleness": 1} if name == "adpsgd" else {}
    simulation = cluster(name, [silent], **options)

    def poison(simulation: Simulation) -> None:
        if simulation.seconds > 5.5:
            simulation.learners[1].learner.params.fill_(1e6)

    simulation.check = poison
    simulation.epoch(60)
    assert steps_of(simulation)[1] < 10
    for rank in (0, 2, 3):
        assert steps_of(simulation)[rank] == 60
        assert all(abs(value) < 10 for value in x(simulation.learners[rank]))
    assert all(abs(value) < 10 for value in simulation.consensus().tolist())


def test_a_replacement_takes_a_members_parameters_and_the_work_left() -> None:
    joins = Fault(at=6.5, rank=1, kind="join")
    simulation = cluster("adpsgd", [crash(1, 2.5), joins])
    starts = []

    def look(simulation: Simulation) -> None:
        engine = simulation.engine
        if not starts and engine.members.incarnation(1):
            learners = [x(v) for v in simulation.learners]
            assert learners[1] in (learners[0], learners[2])
            starts.append(simulation.seconds)

    simulation.check = look
    simulation.epoch(10)
    assert starts == [pytest.approx(6.5, abs=0.1)]
    assert steps_of(simulation) == [10] * 4
    mine = [step.seconds for step in simulation.record if step.rank == 1]
    assert not [seconds for seconds in mine if 2.5 < seconds < 6.5]


@pytest.mark.parametrize("name", ["adpsgd", "allreduce"])
def test_a_replacement_of_one_that_lives_does_nothing(name: str) -> None:
    joins = [Fault(at=at, rank=1, kind="join") for at in (0.5, 9.99, 11)]
    simulation, undisturbed = cluster(name, joins), cluster(name, [])
    for each in (simulation, undisturbed):
        each.epoch(10)
        each.epoch(10)
    assert simulation.record == undisturbed.record
    assert simulation.engine.members.now.version == 0


@pytest.mark.parametrize("name", SURVIVING)
def test_a_replacement_of_the_last_epoch_trains_in_the_next(name: str) -> None:
    simulation = cluster(name, [crash(3, 2.5), Fault(at=200, rank=3, kind="join")])
    simulation.epoch(10)
    simulation.consensus()
    simulation.engine.clock.now = round(201e9)
    for _ in range(2):
        simulation.epoch(10)
        models = simulation.consensus_models()
    assert sorted(models) == [0, 1, 2, 3]
    assert all(torch.equal(model, models[0]) for model in models.values())


def test_all_can_be_lost() -> None:
    simulation = cluster("adpsgd", [crash(rank, 2.5) for rank in range(4)])
    with pytest.raises(PeerLostError, match="all learners are lost"):
        simulation.epoch(10)


@pytest.mark.parametrize("at", [2.5, 3.5, 4.5, 5.5, 6.5])
def test_survivors_combine_their_updates_by_adasum(at: float) -> None:
    """Learner 1 dies in one of the collectives, each of which takes seconds."""
    begun = blocks("adasum", [], latency=0.5).seconds
    struck = blocks("adasum", [crash(1, begun + at)], latency=0.5)
    two = blocks("adasum", [], [0, 2])
    for simulation in (struck, two):
        simulation.epoch(2)
    for rank, other in ((0, 0), (2, 1)):
        assert x(struck.learners[rank]) == pytest.approx(x(two.learners[other]))


# Blocks

GRADIENTS = [[1.0, 3.0, -2.0, 0.5, 2.0, -1.0], [2.0, 1.0, 0.0, -1.0, 1.0, 2.0]]
GRADIENTS += [[-3.0, 1.0, 1.5, 2.0, 0.0, 1.0]]
PERIOD, LR = 2, 0.1
AT_ONCE: dict[str, dict[str, Any]] = {"diloco": {"warmup": 0}, "bmuf": {"warmup": 0}}
"""Options by which block momentum is there from the first block."""
MOMENTA = {"local_sgd": (0.0, 1.0), "diloco": (0.9, 0.7), "bmuf": (None, 1.0)}


def oracle(name: str, sizes: Sequence[int]) -> float:
    """Return the start after blocks whose ends the first `size` learners take part in.

    In plain numbers, by the equations of docs/algorithms/block.md, with NBM.
    """
    theta = start = 0.25
    delta = 0.0
    for block, size in enumerate(sizes):
        eta, zeta = MOMENTA[name]
        eta = 1 - 1 / size if eta is None else eta
        steps = slice(block * PERIOD, (block + 1) * PERIOD)
        ends = [start - LR * sum(own[steps]) for own in GRADIENTS[:size]]
        delta = eta * delta + zeta * (sum(ends) / size - start)
        theta += delta
        start = theta + eta * delta
    return start


def blocks(
    name: str,
    faults: Sequence[Fault],
    ranks: Sequence[int] = (0, 1, 2),
    latency: float = 1.0,
    **options: Any,
) -> Simulation:
    """Learners that go along the gradients of `ranks`, in steps of a second."""
    gradients = along_each(lambda rank, step: GRADIENTS[ranks[rank]][step])
    options = {"period": PERIOD, **AT_ONCE.get(name, {}), **options}
    learners = points(name, len(ranks), gradients, **options)
    network = Network(between=Link(latency=latency))
    return started(learners, Compute(seconds=1), network, faults=faults)


@pytest.mark.parametrize("name", MOMENTA)
@pytest.mark.parametrize("at", [2.5, 4.0, 8.0, 10.0, 13.0])
def test_survivors_end_the_block_in_a_smaller_group(name: str, at: float) -> None:
    """Learner 2 dies in a step, or in a collective, each of which takes seconds."""
    simulation = blocks(name, [crash(2, 2.0 + at)])
    simulation.epoch(6)
    first = 2 if 2.0 + at < end_of_the_first_block(name) else 3
    for virtual in simulation.learners[:2]:
        assert x(virtual)[0] == pytest.approx(oracle(name, [first, 2, 2]), rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"exchange": "bfloat16"}, {"keep": 0.99}])
def test_momentum_is_that_of_those_who_lived_to_take_part(
    options: dict[str, Any],
) -> None:
    """Learner 2 dies at each moment of the second block's end."""
    begin = end_of_the_first_block("bmuf")
    found = set()
    for tick in range(1, 48):
        faults = [crash(2, begin + 0.25 * tick)]
        simulation = blocks("bmuf", faults, moments="local", **options)
        simulation.epoch(4)
        learners = simulation.learners
        assert x(learners[0]) == x(learners[1])
        found.add(x(learners[0])[0])
    expected = [oracle("bmuf", [3, size]) for size in (2, 3)]
    for value in expected:
        assert any(value == pytest.approx(one, abs=1e-3) for one in found)
    for one in found:
        assert any(value == pytest.approx(one, abs=1e-3) for value in expected), found


def end_of_the_first_block(name: str) -> float:
    """Return when the first block of three learners has ended, by a run of its own."""
    simulation = blocks(name, [])
    simulation.epoch(2)
    return simulation.record[-1].seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3:crash", "is not a fault"),
        ("x:crash:1", "is not a fault"),
        ("3:crash:1:2:3", "is not a fault"),
        ("3:crash:nan", "seconds >= 0"),
        ("3:leave:1", "one of crash, silence, join"),
        ("3:silence:1", "lasts seconds > 0"),
        ("3:join:1:2", "lasts no seconds"),
    ],
)
def test_texts_that_are_no_faults(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Fault.parse(text)
