"""Exchanges in bfloat16. Random schedules of them are in `test_schedules`."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import SGD

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.algorithms.gossip.snapshot import CHECKED, Rounded
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from espnet_distopt.simulation import Compute, Simulation
from tests.processes import launch
from tests.random_gossip import Gossip
from tests.replicas import Point, Replica, end, run
from tests.virtual import points as virtual_points
from tests.virtual import towards_rank

ELEMENTS = 200


def replicas(
    starts: list[Tensor], name: str = "adpsgd", **options: Any
) -> list[Replica]:
    """Learners of float32 that have gone from one start to places of their own."""
    made = [
        Replica.of(
            name,
            Point(torch.linspace(-3, 3, ELEMENTS).tolist(), torch.float32),
            partial(SGD, lr=0.0),
            rank,
            len(starts),
            exchange="bfloat16",
            **options,
        )
        for rank in range(len(starts))
    ]
    run(*(r.algorithm.start(r.learner) for r in made))
    for replica, start in zip(made, starts, strict=True):
        algorithm: Any = replica.algorithm
        replica.learner.params.add_(start)
        algorithm.snapshot.publish()
    return made


def still(replica: Replica, steps: int) -> Any:
    for _ in range(steps):
        yield from replica.step(0.0)
        yield None


def changes(size: int, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return list(scale * torch.randn(size, ELEMENTS, generator=generator))


def mean(of: list[Replica]) -> Tensor:
    return torch.stack([r.learner.params.double() for r in of]).mean(0)


@pytest.mark.parametrize("topology", ["ring", "random"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_the_mean_is_conserved_to_float32_rounding(size: int, topology: str) -> None:
    for seed in range(5):
        learners = replicas(changes(size, 0.1), topology=topology, seed=seed)
        before = mean(learners)
        schedule = Gossip(learners, [still(r, 60) for r in learners], seed)
        schedule.run()
        end(learners)
        assert len(schedule.events) > 5
        rounding = 2.0**-24 * 3.5 * len(schedule.events)
        assert (mean(learners) - before).abs().max() < rounding


@pytest.mark.parametrize("scale", [1e-3, 1e-1])
def test_learners_come_together_to_the_precision_of_what_has_changed(
    scale: float,
) -> None:
    """Rounding the weights themselves would leave them 2^-8 of the weights apart."""
    starts = changes(4, scale)
    learners = replicas(starts)
    Gossip(learners, [still(r, 400) for r in learners], seed=0).run()
    end(learners)
    middle = mean(learners)
    apart = max(float((r.learner.params - middle).abs().max()) for r in learners)
    largest = max(float(start.abs().max()) for start in starts)
    assert 0 < apart < 2.0**-7 * largest


def test_what_is_sent_is_the_change_rounded_to_nearest() -> None:
    reference = torch.linspace(-3, 3, ELEMENTS, dtype=torch.float64)
    rounded = Rounded(reference)
    (change,) = changes(1, 0.1)
    program = rounded.swap(1, reference + change)
    next(program).work()  # type: ignore[union-attr]
    sent = program.send(None).tensor[:ELEMENTS].double()  # type: ignore[union-attr]
    error = (sent - change).abs()
    assert (error <= 2.0**-8 * change.abs()).all()
    assert (error > 2.0**-9 * change.abs()).any()


def test_both_ends_move_by_exact_negatives() -> None:
    a, b = replicas([torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)])
    for replica, change in zip((a, b), changes(2, 0.1), strict=True):
        replica.learner.params.add_(change)
    for replica in (a, b):
        replica.algorithm.snapshot.publish()  # type: ignore[attr-defined]
    Gossip([a, b], [still(a, 1), still(b, 1)], eager=True).run()
    one, other = (r.algorithm.snapshot.unapplied() for r in (a, b))  # type: ignore[attr-defined]
    assert one and one[0].abs().sum() > 0
    assert torch.equal(one[0], -other[0])


def test_an_exchange_costs_half_the_bytes() -> None:
    size = 4
    learners = virtual_points("adpsgd", size, towards_rank, exchange="bfloat16")
    simulation = Simulation(learners, Compute(spread=0.3))
    simulation.start()
    for virtual in learners:
        virtual.metrics()
    simulation.epoch(10)
    for virtual in learners:
        figures = virtual.metrics()
        assert figures["exchanges"] > 0
        assert figures["bytes"] == 2 * (2 + CHECKED) * figures["exchanges"]


def test_the_next_reference_is_the_consensus() -> None:
    learners = replicas(changes(3, 0.1))
    means = run(*(r.algorithm.consensus(r.learner) for r in learners))
    for replica in learners:
        state = replica.algorithm.state_dict()
        assert torch.equal(state["reference"], means[0])


def test_ends_with_unequal_references_are_told() -> None:
    learners = replicas(changes(2, 0.1))
    algorithm: Any = learners[1].algorithm
    algorithm._rounded.refer_to(learners[1].learner.params)
    with pytest.raises(InputError, match="round against different models"):
        Gossip(learners, [still(r, 3) for r in learners], seed=0).run()


def test_a_state_without_a_reference_is_refused() -> None:
    (rounded, _) = replicas(changes(2, 0.1))
    state = rounded.algorithm.state_dict() | {"reference": None}
    with pytest.raises(InputError, match="saved with exchange: float32"):
        rounded.algorithm.load_state_dict(state)


def test_who_exchanges_nothing_keeps_nothing() -> None:
    alone, *_ = replicas([torch.zeros(ELEMENTS)])
    assert alone.algorithm.state_dict()["reference"].numel() == 0
    Gossip([alone], [still(alone, 3)]).run()


def test_the_state_of_one_that_was_alone_leaves_the_reference_of_the_start() -> None:
    alone, *_ = replicas([torch.zeros(ELEMENTS)])
    member, _ = replicas(changes(2, 0.1))
    before = member.algorithm.state_dict()["reference"].clone()
    member.algorithm.load_state_dict(alone.algorithm.state_dict())
    assert torch.equal(member.algorithm.state_dict()["reference"], before)


def test_all_that_gossip_have_the_option() -> None:
    found = {n for n, e in ALGORITHMS.items() if hasattr(e.config, "exchange")}
    assert found >= {n for n, e in ALGORITHMS.items() if e.algorithm.wants_gossip}


def half_as_wide() -> list[float]:
    """An odd number of parameters that are bfloat16 themselves."""
    model = Point([1.0, 2.0, 3.0], torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.25)
    rank = dist.get_rank()
    with Session(model, optimizer, "adpsgd", exchange="bfloat16") as session:
        for _ in range(4):
            optimizer.zero_grad()
            (model.x * (1.0 + rank)).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            session.step()
        with session.consensus():
            values: list[float] = model.x.tolist()
    return values


def test_parameters_may_be_bfloat16_themselves() -> None:
    first, second = launch(2, half_as_wide)
    assert first == second == [-0.5, 0.5, 1.5]  # all of these are exact
