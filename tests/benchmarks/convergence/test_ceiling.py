"""Batches grow until all-reduce fails, and AD-PSGD is asked about that batch."""

import math

from convergence.claim import Claim
from convergence.claims.ibm_batch_ceiling import Ladder, claim
from convergence.claims_page import verdict
from convergence.sweep import Result
from convergence.training import DIGITS, Training

SMALLEST = Training(
    algorithm="allreduce", learners=4, batch=2, samples=8 * 81 * 30, lr=0.0, seed=0,
    problem=DIGITS,
)  # fmt: skip
LADDER = Ladder(smallest=SMALLEST, rates=(0.1, 0.2, 0.4), rungs=5)
CLAIM = claim(LADDER, "a network", "All is small.")


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
        ("allreduce", 24), ("allreduce", 72), ("allreduce", 216),
        ("adpsgd, ring", 216), ("adpsgd, ring", 216),
        ("adpsgd, random", 216), ("adpsgd, random", 216),
    ]  # fmt: skip
    assert verdict(CLAIM, lambda cell: result(cell, ceilings)) == "holds"


def test_gossip_that_fails_there_too_decides_against_the_claim() -> None:
    found = verdict(CLAIM, lambda cell: result(cell, losses(72, 72)))
    assert found == "does not hold here"


def test_without_a_ceiling_the_claim_is_undecided() -> None:
    ceilings = losses(10**6, 10**6)
    assert asked(CLAIM, ceilings)[-1] == ("allreduce", 8 * 81)
    expected = "undecided, as the case that it is about was not found"
    assert verdict(CLAIM, lambda cell: result(cell, ceilings)) == expected
