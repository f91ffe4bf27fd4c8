"""Exchanges in bfloat16. Random schedules of them are in `test_schedules`."""

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
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from tests.processes import launch
from tests.replicas import Point
from tests.virtual import along_each, points, published, started, towards_rank

ELEMENTS = 200


def begun(changes: list[Tensor], seed: int = 0, **options: Any) -> Simulation:
    """Learners of float32 that have gone from one start to places of their own."""
    learners = []
    for rank in range(len(changes)):
        model = Point(torch.linspace(-3, 3, ELEMENTS).tolist(), torch.float32)
        parts = model, SGD(model.parameters(), lr=0.0), along_each(zero)(model, rank)
        options = {"exchange": "bfloat16", "seed": seed, **options}
        learners.append(VirtualLearner(*parts, "adpsgd", rank, len(changes), **options))
    simulation = started(learners, Compute(spread=1, seed=seed))
    for virtual, change in zip(learners, changes, strict=True):
        virtual.learner.params.add_(change)
        published(virtual).publish()
    return simulation


def zero(rank: int, step: int) -> float:
    return 0.0


def changes(size: int, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return list(scale * torch.randn(size, ELEMENTS, generator=generator))


def mean(simulation: Simulation) -> Tensor:
    params = [v.learner.params.double() for v in simulation.learners]
    return torch.stack(params).mean(0)


@pytest.mark.parametrize("topology", ["ring", "random"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_the_mean_is_conserved_to_float32_rounding(size: int, topology: str) -> None:
    for seed in range(5):
        simulation = begun(changes(size, 0.1), seed, topology=topology)
        before = mean(simulation)
        simulation.epoch(60)
        exchanges = sum(v.metrics()["exchanges"] for v in simulation.learners) / 2
        assert exchanges > 5
        rounding = 2.0**-24 * 3.5 * exchanges
        assert (mean(simulation) - before).abs().max() < rounding


@pytest.mark.parametrize("scale", [1e-3, 1e-1])
def test_learners_come_together_to_the_precision_of_what_has_changed(
    scale: float,
) -> None:
    """Rounding the weights themselves would leave them 2^-8 of the weights apart."""
    starts = changes(4, scale)
    simulation = begun(starts)
    simulation.epoch(400)
    middle, found = mean(simulation), simulation.learners
    apart = max(float((v.learner.params - middle).abs().max()) for v in found)
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
    simulation = begun(changes(2, 0.1))
    ends: list[Tensor] = []

    def look(running: Simulation) -> None:
        found = [published(v).unapplied() for v in running.learners]
        if all(found) and not ends:
            ends.extend(differences[0].clone() for differences in found)

    simulation.check = look
    simulation.epoch(10)
    one, other = ends
    assert one.abs().sum() > 0
    assert torch.equal(one, -other)


@pytest.mark.parametrize(
    ("exchange", "message"), [("float32", 2 * 8), ("bfloat16", 2 * (2 + CHECKED))]
)
def test_an_exchange_costs_its_bytes(exchange: str, message: int) -> None:
    """Of two float64, or of two bfloat16 and a checksum."""
    learners = points("adpsgd", 4, towards_rank, exchange=exchange)
    simulation = started(learners, Compute(spread=0.3))
    for virtual in learners:
        virtual.metrics()
    simulation.epoch(10)
    for virtual in learners:
        figures = virtual.metrics()
        assert figures["exchanges"] > 0
        assert figures["bytes"] == message * figures["exchanges"]


def test_the_next_reference_is_the_consensus() -> None:
    simulation = begun(changes(3, 0.1))
    consensus = simulation.consensus()
    for virtual in simulation.learners:
        assert torch.equal(virtual.algorithm.state_dict()["reference"], consensus)


def test_ends_with_unequal_references_are_told() -> None:
    simulation = begun(changes(2, 0.1))
    algorithm: Any = simulation.learners[1].algorithm
    algorithm._rounded.refer_to(simulation.learners[1].learner.params)
    with pytest.raises(InputError, match="round against different models"):
        simulation.epoch(3)


def test_a_state_without_a_reference_is_refused() -> None:
    algorithm = begun(changes(2, 0.1)).learners[0].algorithm
    state = algorithm.state_dict() | {"reference": None}
    with pytest.raises(InputError, match="saved with exchange: float32"):
        algorithm.load_state_dict(state)


def test_one_that_exchanges_nothing_keeps_nothing_and_its_state_brings_nothing() -> (
    None
):
    """The reference of the start stays."""
    alone = begun([torch.zeros(ELEMENTS)])
    alone.epoch(3)
    state = alone.learners[0].algorithm.state_dict()
    assert state["reference"].numel() == 0
    member = begun(changes(2, 0.1)).learners[0].algorithm
    before = member.state_dict()["reference"].clone()
    member.load_state_dict(state)
    assert torch.equal(member.state_dict()["reference"], before)


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
