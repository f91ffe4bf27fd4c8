"""On a ring of 64 learners, continuous momentum makes AD-PSGD better.

The claim is made here of a method of others: A2CiD2 brings learners on a ring closer at
the same bytes. The trainings on a ring are those of `no_loss_adam`, which found that 64
learners on a ring are worse than all-reduce, and those that are compared with them
differ by `continuous_momentum: true` and by nothing else.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE, SETTING, STEPS
from convergence.paired import Question

OPTIONS: tuple[tuple[str, object], ...] = (("topology", "ring"),)
CONSISTENT: tuple[tuple[str, object], ...] = (("second_moment", "consistent"),)


def _comparisons() -> Iterator[Comparison]:
    for learners in (16, 64):
        samples = STEPS[learners] * learners * ALONE.batch
        whole = replace(ALONE, learners=learners, samples=samples, algorithm="adpsgd")
        on = (*OPTIONS, ("continuous_momentum", True), *CONSISTENT)
        yield Comparison(
            name="adpsgd, ring, continuous momentum",
            arm=Arm(cell=replace(whole, options=on)),
            against="adpsgd, ring",
            reference=Arm(cell=replace(whole, options=(*OPTIONS, *CONSISTENT))),
            question=Question(0.0),
            counts=learners == 64,
        )


CLAIM = Claim(
    text=(
        "On a ring of 64 learners with Adam, AD-PSGD with `continuous_momentum` is "
        "better than without."
    ),
    source="Nabli et al., NeurIPS 2023 (A2CiD2), which compares on other problems",
    setting=SETTING,
    comparisons=tuple(_comparisons()),
)
