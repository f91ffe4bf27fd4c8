"""Adasum keeps the learning rate of one learner, where the sum of updates fails.

The claim is that of the paper's study with LeNet: however many learners there are,
Adasum trains at the rate of one learner, and at a more aggressive one, where the sum
does not. The sum is `allreduce` with N times the rate. Further claims ask
the same with Adam and LAMB, where the mean with N times the rate, which is linear
scaling, stands beside it for contrast; and with local steps between the combinations.
The paper accumulates up to 64 batches on each learner before it communicates. Here each
learner makes as many local steps, and the sums of their updates are combined.

That orthogonal updates are added and parallel ones averaged is arithmetic, and a matter
of tests: `tests/algorithms/test_adasum_arithmetic.py`, from `test_as2` on.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.paired import Question
from convergence.training import DIGITS, Training

NUMBERS = (4, 16, 64)
SUM_FROM = 16
"""The number of learners from which the sum is to fail."""
LIMIT = 10.0
AGGRESSIVE = 4
ALONE = Training(
    algorithm="allreduce",
    learners=1,
    batch=4,
    samples=32_768,
    lr=0.0,
    seed=0,
    problem=DIGITS,
    schedule="constant",
)
RATES = (0.00125, 0.0025, 0.005)


def kept(cell: Training, rates: tuple[float, ...], factor: float = 1) -> Arm:
    """Return a method at the best rate of one learner.

    Args:
        cell: the training of the method.
        rates: the rates from which one learner chooses first.
        factor: the factor on the rate.
    """
    alone = replace(cell, algorithm="allreduce", learners=1, options=())
    return Arm(cell=cell, rates=rates, tuned_on=alone, factor=factor)


def _of_rates() -> Iterator[Comparison]:
    for learners, factor in [*((n, 1) for n in NUMBERS), (16, AGGRESSIVE)]:
        whole = replace(ALONE, learners=learners)
        at_rate = f", {factor} times the rate" if factor > 1 else ""
        adasum = kept(replace(whole, algorithm="adasum"), RATES, factor)
        yield Comparison(
            name=f"adasum{at_rate}",
            arm=adasum,
            against="one learner, best rate",
            reference=Arm(cell=ALONE, rates=RATES),
            question=Question(LIMIT),
        )
        yield Comparison(
            name=f"sum{at_rate}",
            arm=kept(whole, RATES, factor * learners),
            against=f"adasum{at_rate}",
            reference=adasum,
            question=Question(LIMIT, "at least"),
            counts=learners >= SUM_FROM,
        )


RATE = Claim(
    text=(
        "Adasum with 4 to 64 learners at the best rate of one learner, and with 16 at "
        f"{AGGRESSIVE} times that rate, is not more than {LIMIT:g} % worse than one "
        f"learner; the sum is at least {LIMIT:g} % worse than Adasum from {SUM_FROM} "
        "learners on."
    ),
    source="Maleki et al., MLSys 2021, the study with LeNet-5",
    setting=(
        "The optimizer is SGD with momentum 0.9. A learner's step has "
        f"{ALONE.batch} samples, and all trainings see {ALONE.samples:,}. The rate is "
        "constant after a linear warm-up over a tenth of the steps. The sum is "
        f"all-reduce with N times the rate. The problem is a {DIGITS}. That Adasum "
        "adds orthogonal updates and averages parallel ones is arithmetic, which "
        "`tests/algorithms/test_adasum_arithmetic.py` checks."
    ),
    comparisons=tuple(_of_rates()),
)

LEARNERS = 16
NORMALISED = {"adam": (0.00025, 0.0005, 0.001), "lamb": (0.0005, 0.001, 0.002)}
"""Optimizer -> the rates from which one learner chooses first."""


def _with_adam() -> Iterator[Comparison]:
    for optim, rates in NORMALISED.items():
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


RATE_ADAM = Claim(
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
    comparisons=tuple(_with_adam()),
)

PERIODS = (8, 64)
OPTIMIZERS = {"sgd": RATES, "adam": NORMALISED["adam"]}


def _in_periods() -> Iterator[Comparison]:
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


PERIOD = Claim(
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
    comparisons=tuple(_in_periods()),
)

CLAIMS = {
    "adasum_rate": RATE,
    "adasum_rate_adam": RATE_ADAM,
    "adasum_period": PERIOD,
}
