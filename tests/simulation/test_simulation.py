"""These tests check that a simulation is a pure function, its events and its errors."""

from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.core.effects import (
    AllReduceMean,
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Broadcast,
    Exchange,
    Invite,
    Program,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import (
    Compute,
    DeadlockError,
    Fault,
    Link,
    Network,
    Simulation,
)
from tests.virtual import (
    Toy,
    drop,
    noisy,
    place,
    points,
    started,
    towards_rank,
    toys,
    x,
)


def outcome(name: str, compute: int = 0, network: int = 0, seed: int = 0) -> Any:
    simulation = started(
        points(name, 4, lambda model, _: noisy(model)),
        Compute(spread=0.5, seed=compute),
        Network(between=Link(latency=0.3), spread=0.5, seed=network),
        seed=seed,
    )
    simulation.epoch(6)
    simulation.epoch(3)
    mean = simulation.consensus().tolist()
    learners = simulation.learners
    figures = [v.metrics() for v in learners]
    return (
        simulation.record,
        simulation.seconds,
        mean,
        [x(v) for v in learners],
        figures,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_arguments_give_the_same_bits(name: str) -> None:
    torch.manual_seed(1)
    first = outcome(name)
    before = torch.get_rng_state()
    torch.manual_seed(2)  # belongs to the caller: neither used nor moved
    assert outcome(name) == first
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", ["compute", "network"])
def test_another_seed_of_time_gives_another_schedule(seed: str) -> None:
    record, _, _, final, _ = outcome("adpsgd")
    other, _, _, end, _ = outcome("adpsgd", **{seed: 1})
    assert [(s.seconds, s.rank) for s in record] != [(s.seconds, s.rank) for s in other]
    assert final != end


def test_time_changes_nothing_where_learners_step_together() -> None:
    _, seconds, mean, final, _ = outcome("allreduce")
    _, longer, same, end, _ = outcome("allreduce", compute=1)
    assert (mean, final) == (same, end)
    assert seconds != longer
    assert outcome("allreduce", seed=1)[2] != mean


def test_the_record_is_in_the_order_of_time_and_complete() -> None:
    record, seconds, *_ = outcome("adpsgd")
    assert [s.seconds for s in record] == sorted(s.seconds for s in record)
    assert seconds >= record[-1].seconds
    for rank in range(4):
        assert [s.step for s in record if s.rank == rank] == list(range(1, 10))


def test_dropout_is_drawn_for_a_step_not_for_a_schedule() -> None:
    """The random numbers of a step do not depend on the steps before it."""
    losses = []
    for seed in (0, 1):
        learners = points("adpsgd", 2, lambda m, _: drop(m))
        simulation = started(learners, Compute(spread=1, seed=seed))
        place(learners, [1.0, 1.0])
        simulation.epoch(8)
        losses.append(sorted((s.rank, s.step, s.loss) for s in simulation.record))
    assert losses[0] == losses[1]
    assert len({loss for *_, loss in losses[0]}) > 1


# Wrong algorithms and arguments


def cycle(learner: Learner) -> Program:
    params = learner.params.clone()
    yield Exchange((learner.rank + 1) % learner.size, params, params.clone())


def alone(learner: Learner) -> Program:
    if learner.rank == 1:
        yield AllReduceMean(learner.params)


def uninvited(learner: Learner) -> Program:
    yield AwaitInvitation((0, 2))


def waits_for_gossip(learner: Learner) -> Program:
    yield AwaitGossip()


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({"gossip": cycle}, "gossip of learner 2 for Exchange with 0"),
        ({"gossip": cycle}, "training of learner 0 for StopGossip"),
        ({"after_step": alone}, "ever: training of learner 1 for AllReduceMean$"),
        ({"gossip": uninvited}, "gossip of learner 1 for AwaitInvitation from 0, 2"),
        ({"after_step": waits_for_gossip}, "training of learner 0 for AwaitGossip"),
    ],
)
def test_a_deadlock_says_who_waits_for_what(programs: Any, words: str) -> None:
    with pytest.raises(DeadlockError, match=words):
        toys(3, **programs).epoch(1)


def mismatch(learner: Learner) -> Program:
    kind = Broadcast if learner.rank == 2 else AllReduceMean
    yield kind(learner.params)


def other_shape(learner: Learner) -> Program:
    yield AllReduceMean(torch.zeros(1 + learner.rank))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (mismatch, r"learner 0 has come to AllReduceMean .*, learner 2 to Broadcast"),
        (other_shape, r"float32 \(1,\), learner 1 to AllReduceMean .* \(2,\)"),
    ],
)
def test_different_collectives_are_an_error(program: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        toys(3, after_step=program).epoch(1)


def invites(learner: Learner) -> Program:
    yield Invite(0)


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({"after_step": invites}, "belongs in a gossip program"),
        ({"gossip": alone}, "does not belong in a gossip program"),
    ],
)
def test_effects_have_their_side(programs: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        toys(2, **programs).epoch(1)


def test_gossip_begins_at_the_end_of_the_first_step_and_sees_the_last() -> None:
    seen: list[tuple[float, bool]] = []

    def watch(learner: Learner) -> Program:
        going = True
        while going:
            going = yield AwaitStep()
            seen.append((simulation.seconds, going))

    simulation = toys(1, gossip=watch)
    simulation.epoch(2)
    assert seen == [(0.3, True), (0.6, True), (0.6, False)]


def test_gossip_of_all_has_ended_when_an_epoch_finishes() -> None:
    finished: list[float] = []

    class Late(Toy):
        wants_gossip = True

        def finish(self, learner: Learner) -> Program:
            finished.append(simulation.seconds)
            yield from ()

    learners = points("bmuf", 2, towards_rank)
    for virtual in learners:
        virtual.algorithm = Late(gossip=lambda _: iter(()))  # type: ignore[arg-type,return-value]
    simulation = Simulation(learners, Compute(seconds=1, slowdown={1: 10}))
    simulation.epoch(2)
    assert finished == [20.0, 20.0]


def test_learners_must_be_all_and_in_order() -> None:
    learners = points("bmuf", 3, towards_rank)
    for wrong in ([], learners[:2], learners[::-1]):
        with pytest.raises(InputError, match="every learner once"):
            Simulation(wrong)


def test_steps_slowdowns_and_faults_belong_to_learners() -> None:
    learners = points("bmuf", 3, towards_rank)
    with pytest.raises(InputError, match="2 numbers of steps for 3 learners"):
        Simulation(learners).epoch([1, 1])
    with pytest.raises(InputError, match="slowdown of learner 3, of 3 learners"):
        Simulation(learners, Compute(slowdown={3: 10}))
    with pytest.raises(InputError, match="fault of learner -1, of 3 learners"):
        Simulation(learners, faults=[Fault(at=10, rank=-1, kind="crash")])


def test_unequal_epochs_of_allreduce_are_an_error() -> None:
    simulation = started(points("allreduce", 2, towards_rank))
    with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
        simulation.epoch([2, 3])
