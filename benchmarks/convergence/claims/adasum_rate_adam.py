"""Adasum keeps the learning rate of one learner with Adam and LAMB, too.

See `adasum_rate`. The mean with N times the rate, which is linear scaling, stands
beside it for contrast.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.adasum_rate import ALONE, LIMIT, kept
from convergence.paired import Question
from convergence.training import DIGITS

LEARNERS = 16
RATES = {"adam": (0.00025, 0.0005, 0.001), "lamb": (0.0005, 0.001, 0.002)}
"""Optimizer -> the rates from which one learner chooses first."""


def _comparisons() -> Iterator[Comparison]:
    for optim, rates in RATES.items():
        alone = replace(ALONE, optim=optim)
        whole = replace(alone, learners=LEARNERS)
        asked = Comparison(
            name=f"adasum, {optim}",
            arm=kept(replace(whole, algorithm="adasum"), rates),
            against="one learner",
            reference=Arm(cell=alone, rates=rates),
            question=Question(LIMIT),
        )
        yield asked
        yield replace(
            asked,
            name=f"allreduce with {LEARNERS} times the rate, {optim}",
            arm=kept(whole, rates, LEARNERS),
            counts=False,
        )


CLAIM = Claim(
    text=(
        f"With Adam and LAMB, Adasum with {LEARNERS} learners at the best rate of one "
        f"learner is not more than {LIMIT:g} % worse than one learner."
    ),
    source="Maleki et al., MLSys 2021",
    setting=(
        f"A learner's step has {ALONE.batch} samples, and all trainings see "
        f"{ALONE.samples:,}. The rate is constant after a linear warm-up over a tenth "
        f"of the steps. The problem is a {DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
)
