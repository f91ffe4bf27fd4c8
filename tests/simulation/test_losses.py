"""These tests check that a learner that waits for a crashed one says so.

Real processes do the same.
"""

from typing import Any

import pytest

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.core.effects import AwaitStep, Exchange, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import PeerLostError
from espnet_distopt.simulation import Compute, Fault, Link, Network, Simulation
from tests.virtual import points, started, towards_rank, toys


def crash(name: str, size: int, crashes: dict[int, float], **more: Any) -> Simulation:
    arguments = {"silence": 30.0} | more
    return Simulation(
        points(name, size, towards_rank),
        Compute(seconds=1, spread=0.3),
        Network(between=Link(latency=0.1), spread=0.3),
        faults=[Fault(at=at, rank=rank, kind="crash") for rank, at in crashes.items()],
        **arguments,
    )


SURVIVING = {name for name in ALGORITHMS if ALGORITHMS[name].algorithm.survives}
ENDING = [name for name in ALGORITHMS if name not in SURVIVING | {"adasum"}]


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_crash_is_noticed_and_named(name: str, rank: int) -> None:
    simulation = crash(name, 4, {rank: 10.5})
    simulation.start()
    with pytest.raises(PeerLostError) as raised:
        for _ in range(4):
            simulation.epoch(10)
    words = str(raised.value)
    assert f"learner {rank} has been silent for 30 s: it crashed at 10.5 s" in words
    assert raised.value.reason == f"learner {rank} crashed at 10.5 s of virtual time"
    waiting = words.split("waiting: ")[1]
    assert f"of learner {rank} " not in waiting  # but of one that lives
    assert simulation.seconds >= 40.5
    # A learner that steps or exchanges with it waits from its last step on.
    assert simulation.seconds < 40.5 + 31
    mine = [step.seconds for step in simulation.record if step.rank == rank]
    assert max(mine) < 10.5


def test_a_silence_that_ends_the_run_is_called_one() -> None:
    silent = Fault(at=2.5, rank=1, kind="silence", seconds=45)
    simulation = started(points("allreduce", 2, towards_rank), faults=[silent])
    words = r"for 30 s: it fell silent at 2\.5 s"
    with pytest.raises(PeerLostError, match=words) as raised:
        simulation.epoch(20)
    assert raised.value.reason == "learner 1 fell silent at 2.5 s of virtual time"


def test_a_wait_that_began_after_the_crash_lasts_as_long() -> None:
    """Learner 0 comes at 100 s to the end of its step, where all learners meet."""
    simulation = started(
        points("allreduce", 2, towards_rank),
        Compute(seconds=1, slowdown={0: 100}),
        faults=[Fault(at=0.5, rank=1, kind="crash")],
        silence=7,
    )
    with pytest.raises(PeerLostError, match=r"for 7 s: it crashed at 0\.5 s"):
        simulation.epoch(1)
    assert simulation.seconds == pytest.approx(107, abs=0.01)


def test_nobody_notices_a_crash_after_the_end() -> None:
    simulation, plain = crash("adpsgd", 4, {2: 1e6}), crash("adpsgd", 4, {})
    for each in (simulation, plain):
        each.start()
        each.epoch(10)
    assert simulation.record == plain.record
    assert simulation.seconds == plain.seconds


def test_a_learner_alone_that_crashes_has_nobody_to_notice() -> None:
    simulation = crash("allreduce", 1, {0: 2.5})
    with pytest.raises(PeerLostError, match=r"learner 0 crashed at 2.5 s"):
        simulation.epoch(10)


def test_what_a_crashed_learner_offered_is_never_taken() -> None:
    """Learner 1 offers an exchange at 1 s and crashes; learner 0 comes at 3 s."""

    def gossip(learner: Learner) -> Program:
        for _ in range(3 if learner.rank == 0 else 1):
            yield AwaitStep()
        params = learner.params.clone()
        yield Exchange(1 - learner.rank, params, params.clone())

    simulation = Simulation(
        toys(2, gossip=gossip).learners,
        Compute(seconds=1),
        faults=[Fault(at=2.0, rank=1, kind="crash")],
        silence=5,
    )
    words = "at 8 s .* learner 1 .* waiting: gossip of learner 0 for Exchange with 1"
    with pytest.raises(PeerLostError, match=words):
        simulation.epoch(20)
    assert not simulation.in_flight
