"""Adasum may combine updates of many local steps.

The claim is that of the paper, which accumulates up to 64 batches on each learner
before it communicates. Here each learner makes as many local steps, and the sums of
their updates are combined.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.adasum_rate import ALONE, LIMIT, RATES, kept
from convergence.claims.adasum_rate_adam import LEARNERS
from convergence.claims.adasum_rate_adam import RATES as NORMALISED
from convergence.paired import Question
from convergence.training import DIGITS

PERIODS = (8, 64)
OPTIMIZERS = {"sgd": RATES, "adam": NORMALISED["adam"]}


def _comparisons() -> Iterator[Comparison]:
    for optim, rates in OPTIMIZERS.items():
        alone = replace(ALONE, optim=optim)
        for period in PERIODS:
            options = (("period", period),)
            whole = replace(alone, learners=LEARNERS)
            cell = replace(whole, algorithm="adasum", options=options)
            yield Comparison(
                name=f"adasum, period {period}, {optim}",
                arm=kept(cell, rates),
                against="one learner",
                reference=Arm(cell=alone, rates=rates),
                question=Question(LIMIT),
            )


CLAIM = Claim(
    text=(
        f"Adasum with {LEARNERS} learners that combine their updates every 8 or 64 "
        f"steps, at the best rate of one learner, is not more than {LIMIT:g} % worse "
        "than one learner."
    ),
    source="Maleki et al., MLSys 2021",
    setting=(
        "The optimizer is SGD with momentum 0.9, or Adam. A learner's step has "
        f"{ALONE.batch} samples, and all trainings see {ALONE.samples:,}. The rate is "
        "constant after a linear warm-up over a tenth of the steps. The problem is a "
        f"{DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
)
