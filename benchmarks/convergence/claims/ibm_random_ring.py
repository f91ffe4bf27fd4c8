"""With 64 learners, random neighbours are better than those of a fixed ring.

The claim is IBM's: the more learners a ring has, the slower it mixes their models, and
random neighbours repair that. AD-PSGD with random pairs is compared with pairs on a
ring; and D-PSGD on a ring in another order in each step, with a ring in fixed order.
"""

from collections.abc import Iterator

from convergence.claim import Claim, Comparison
from convergence.claims.ibm_many_learners import SETTING, method
from convergence.paired import Question

LEARNERS = 64
AGGRESSIVE = 4
PAIRS = {"adpsgd": ("random", "ring"), "dpsgd": ("randomized_ring", "ring")}
"""Algorithm -> its topology with random neighbours, and that without."""


def _comparisons() -> Iterator[Comparison]:
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


CLAIM = Claim(
    text=(
        f"With {LEARNERS} learners, AD-PSGD and D-PSGD with random neighbours are "
        "better than on a fixed ring."
    ),
    source="Zhang et al., ICASSP 2020, arXiv 2002.01119 (IBM)",
    setting=SETTING,
    comparisons=tuple(_comparisons()),
)
