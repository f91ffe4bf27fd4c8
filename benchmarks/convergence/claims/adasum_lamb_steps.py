"""LAMB needs 30 % fewer steps with Adasum than with the mean.

The claim is that of the paper on BERT. It is asked here as: is Adasum, after 70 % of
the steps, at least as good as the mean after all of them?
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.paired import Question
from convergence.training import DIGITS, LABELS, Training

LEARNERS, STEPS, FEWER = 16, 300, 210
CASES = {"digits": (DIGITS, (16, 64)), "labels": (LABELS, (16,))}
"""A short name of the problem -> the problem, and the batches of a learner's step."""
RATES = {DIGITS: (0.005, 0.01, 0.02), LABELS: (0.01, 0.02, 0.04)}


def _comparisons() -> Iterator[Comparison]:
    for short, (problem, batches) in CASES.items():
        for batch in batches:
            mean = Training(
                algorithm="allreduce",
                learners=LEARNERS,
                batch=batch,
                samples=STEPS * LEARNERS * batch,
                lr=0.0,
                seed=0,
                optim="lamb",
                problem=problem,
                schedule="constant",
            )
            fewer = FEWER * LEARNERS * batch
            adasum = replace(mean, algorithm="adasum", samples=fewer)
            yield Comparison(
                name=f"adasum, {short}, {LEARNERS} x {batch}",
                arm=Arm(cell=adasum, rates=RATES[problem]),
                against=f"allreduce, {STEPS} steps",
                reference=Arm(cell=mean, rates=RATES[problem]),
                question=Question(0.0),
            )


CLAIM = Claim(
    text=(
        f"LAMB with Adasum is as good after {FEWER} steps as LAMB with the mean after "
        f"{STEPS}, each at its best rate."
    ),
    source="Maleki et al., arXiv 2006.02924, abstract (30 % fewer steps)",
    setting=(
        f"There are {LEARNERS} learners. The rate is constant after a linear warm-up "
        "over a tenth of the steps. The digits are a "
        f"{DIGITS}. The labels are a {LABELS}."
    ),
    comparisons=tuple(_comparisons()),
)

CLAIMS = {"adasum_lamb_steps": CLAIM}
