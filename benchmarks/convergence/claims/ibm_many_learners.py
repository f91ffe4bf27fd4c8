"""AD-PSGD with 16 to 64 learners loses nothing against one learner.

The claim is IBM's, who report the word error rates of one GPU with 16 to 64 of them.
Each learner's batch stays the same, so the batch of all grows with their number. The
rate is that of all-reduce with the same batch, as theirs is.

A second claim is that random neighbours are better than those of a fixed ring, with 64
learners: the more learners a ring has, the slower it mixes their models, and random
neighbours repair that. AD-PSGD with random pairs is compared with pairs on a ring; and
D-PSGD on a ring in another order in each step, with a ring in fixed order.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.paired import Question
from convergence.training import DIGITS, Training

NUMBERS = (16, 32, 64)
ALONE = Training(
    algorithm="allreduce",
    learners=1,
    batch=4,
    samples=65_536,
    lr=0.0,
    seed=0,
    problem=DIGITS,
    schedule="constant",
)
ONE = Arm(cell=ALONE, rates=(0.00125, 0.0025, 0.005))
RATES = {16: (0.0125, 0.025, 0.05), 32: (0.025, 0.05, 0.1), 64: (0.025, 0.05, 0.1)}
"""Learners -> the rates from which all-reduce chooses first."""

SETTING = (
    "The optimizer is SGD with momentum 0.9. A learner's step has "
    f"{ALONE.batch} samples, and all trainings see {ALONE.samples:,}. The rate is "
    "constant after a linear warm-up over a tenth of the steps. One learner and "
    "all-reduce have their best rates, and the other methods have that of all-reduce "
    f"with equally many learners. The problem is a {DIGITS}."
)


def allreduce(learners: int) -> Arm:
    """Return all-reduce with a number of learners, at its best rate."""
    return Arm(cell=replace(ALONE, learners=learners), rates=RATES[learners])


def method(learners: int, algorithm: str, factor: float = 1, **options: str) -> Arm:
    """Return a method at the best rate of all-reduce.

    Args:
        learners: the number of learners.
        algorithm: the name of the algorithm.
        factor: the factor on the rate.
        options: the options of the algorithm.
    """
    whole = allreduce(learners)
    given = tuple(options.items())
    cell = replace(whole.cell, algorithm=algorithm, options=given)
    return Arm(cell=cell, rates=whole.rates, tuned_on=whole.cell, factor=factor)


def _of_numbers() -> Iterator[Comparison]:
    for learners in NUMBERS:
        gossip = Comparison(
            name="adpsgd, ring",
            arm=method(learners, "adpsgd", topology="ring"),
            against="one learner",
            reference=ONE,
            question=Question(5.0),
        )
        whole = allreduce(learners)
        yield gossip
        yield replace(gossip, against="allreduce", reference=whole, counts=False)
        yield replace(gossip, name="allreduce", arm=whole, counts=False)


MANY = Claim(
    text=(
        "AD-PSGD with 16, 32 and 64 learners is not more than 5 % worse than one "
        "learner that sees the same number of samples."
    ),
    source="IBM, arXiv 1904.04956 (16 GPUs), 1907.05701 and 2002.01119 (64)",
    setting=SETTING,
    comparisons=tuple(_of_numbers()),
)

LEARNERS = 64
AGGRESSIVE = 4
PAIRS = {"adpsgd": ("random", "ring"), "dpsgd": ("randomized_ring", "ring")}
"""Algorithm -> its topology with random neighbours, and that without."""


def _of_topologies() -> Iterator[Comparison]:
    for algorithm, (random, ring) in PAIRS.items():
        yield Comparison(
            name=f"{algorithm}, {random}",
            arm=method(LEARNERS, algorithm, topology=random),
            against=f"{algorithm}, {ring}",
            reference=method(LEARNERS, algorithm, topology=ring),
            question=Question(0.0),
        )
    yield Comparison(
        name=f"adpsgd, random, {AGGRESSIVE} times the rate",
        arm=method(LEARNERS, "adpsgd", AGGRESSIVE, topology="random"),
        against="adpsgd, ring, the same rate",
        reference=method(LEARNERS, "adpsgd", AGGRESSIVE, topology="ring"),
        question=Question(0.0),
        counts=False,
    )


RANDOM_RING = Claim(
    text=(
        f"With {LEARNERS} learners, AD-PSGD and D-PSGD with random neighbours are "
        "better than on a fixed ring."
    ),
    source="Zhang et al., ICASSP 2020, arXiv 2002.01119 (IBM)",
    setting=SETTING,
    comparisons=tuple(_of_topologies()),
)

CLAIMS = {
    "ibm_many_learners": MANY,
    "ibm_random_ring": RANDOM_RING,
}
