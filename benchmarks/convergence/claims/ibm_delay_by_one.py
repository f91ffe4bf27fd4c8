"""Delay-by-one is as good as all-reduce with a large batch.

The claim is IBM's, who recommend it for large batches and learners that are equally
fast. The published form is not known to this project, so both readings are compared:
`d1d_model` averages models, and `d1d_grad` averages gradients, one step late.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.paired import Question
from convergence.training import DIGITS, Training

WHOLE = Training(
    algorithm="allreduce",
    learners=64,
    batch=16,
    samples=131_072,
    lr=0.0,
    seed=0,
    problem=DIGITS,
    schedule="constant",
)
RATES = (0.05, 0.1, 0.2)
BEST = Arm(cell=WHOLE, rates=RATES)


def _comparisons() -> Iterator[Comparison]:
    for algorithm in ("d1d_model", "d1d_grad"):
        cell = replace(WHOLE, algorithm=algorithm)
        own = Comparison(
            name=algorithm,
            arm=Arm(cell=cell, rates=RATES),
            against="allreduce",
            reference=BEST,
            question=Question(5.0),
        )
        kept = Arm(cell=cell, rates=RATES, tuned_on=WHOLE)
        name = f"{algorithm}, all-reduce's rate"
        yield own
        yield replace(own, name=name, arm=kept, counts=False)


CLAIM = Claim(
    text=(
        f"Delay-by-one with {WHOLE.learners} learners and a batch of "
        f"{WHOLE.learners * WHOLE.batch:,} samples is not more than 5 % worse than "
        "all-reduce, each at its best rate."
    ),
    source="IBM, IEEE/ACM TASLP 2021, arXiv 2110.11199, abstract",
    setting=(
        "The optimizer is SGD with momentum 0.9. The rate is constant after a linear "
        f"warm-up over a tenth of the steps. The problem is a {DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
)

CLAIMS = {"ibm_delay_by_one": CLAIM}
