"""Batches grow until all-reduce fails, and AD-PSGD is asked about that batch."""

import math
from dataclasses import replace

from convergence.claim import Claim
from convergence.claims_page import verdict
from convergence.ladder import Ladder
from convergence.sweep import Result
from convergence.training import Training

SMALLEST = Training(
    algorithm="allreduce", learners=4, batch=2, samples=8 * 81 * 30, lr=0.0, seed=0,
    problem="digits",
)  # fmt: skip
LADDER = Ladder(
    smallest=SMALLEST,
    multiples=(3, 9, 27, 81),
    methods={
        "adpsgd, ring": ("adpsgd", {"topology": "ring"}, True),
        "adpsgd, random": ("adpsgd", {"topology": "random"}, False),
    },
    rates=(0.1, 0.2, 0.4),
)
CLAIM = Claim(
    text="It still converges.",
    source="a paper",
    comparisons=(LADDER.first(),),
    seeds=tuple(range(5)),
    then=LADDER.then,
)


def losses(ceiling: int, of_gossip: int) -> dict[str, int]:
    return {"allreduce": ceiling, "adpsgd": of_gossip}


def result(cell: Training, ceilings: dict[str, int]) -> Result:
    """Return a loss that is best at the square root of the batch, times 0.2."""
    off = math.log(cell.lr / (0.2 * math.sqrt(cell.batch / 2))) ** 2
    failed = cell.batch * cell.learners > ceilings[cell.algorithm]
    return {"held_out": 1 + off / 10 + 0.3 * failed + cell.seed / 1e6}


def asked(found: Claim, ceilings: dict[str, int]) -> list[tuple[str, int]]:
    comparisons = found.asked(lambda cell: result(cell, ceilings))
    return [(c.name, c.arm.cell.learners * c.arm.cell.batch) for c in comparisons]


def test_gossip_is_asked_about_the_batch_beyond_the_ceiling() -> None:
    ceilings = losses(72, 216)
    assert asked(CLAIM, ceilings) == [
        ("allreduce, batch 24", 24), ("allreduce, batch 72", 72),
        ("allreduce, batch 216", 216),
        ("adpsgd, ring, batch 216", 216), ("adpsgd, ring, batch 216", 216),
        ("adpsgd, random, batch 216", 216), ("adpsgd, random, batch 216", 216),
    ]  # fmt: skip
    assert verdict(CLAIM, lambda cell: result(cell, ceilings)) == "holds"


def test_gossip_that_fails_there_too_decides_against_the_claim() -> None:
    found = verdict(CLAIM, lambda cell: result(cell, losses(72, 72)))
    assert found == "does not hold here"


def test_without_a_ceiling_the_claim_is_undecided() -> None:
    ceilings = losses(10**6, 10**6)
    assert asked(CLAIM, ceilings)[-1] == ("allreduce, batch 648", 648)
    expected = "undecided, as the case that it is about was not found"
    assert verdict(CLAIM, lambda cell: result(cell, ceilings)) == expected


def test_a_rate_that_is_scaled_grows_with_the_batch_and_is_compared_with_less() -> None:
    linear = replace(
        LADDER, smallest=replace(SMALLEST, lr=0.01), rates=(), parts=(1, 2)
    )
    claim = replace(CLAIM, comparisons=(linear.first(),), then=linear.then)

    def failing_from_216(cell: Training) -> Result:
        size = cell.learners * cell.batch
        return {"held_out": 1 + 0.3 * (size >= 216) + cell.seed / 1e6}

    found = claim.asked(failing_from_216)
    rates = {(c.arm.cell.batch, c.arm.cell.lr / c.arm.cell.batch) for c in found}
    assert rates == {(each, 0.005) for each in (6, 18, 54)}
    parts = [c.reference.cell.lr / c.arm.cell.lr for c in found if "same" in c.against]
    assert parts == [1, 0.5] * 2
    assert [c.name for c in found if c.counts] == ["adpsgd, ring, batch 216"]
