"""Synchronous Adam degrades as the number of learners grows; BMUF-Adam does not.

The claim is that of the paper's tables 2 and 3. Each learner's batch stays as small as
it is, so synchronous Adam has a batch that grows with their number, and fewer steps.
Its rate is tuned for each number. BMUF-Adam keeps the best rate of one learner.
Two claims ask the same of a BLSTM, which labels frames or learns strings by CTC.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE
from convergence.paired import Question
from convergence.training import DIGITS, LABELS, STRINGS, Training

PERIOD = 8
LIMIT = 5.0
NUMBERS = (4, 16, 32)
COUNT_FROM = 16
"""The number of learners from which synchronous Adam is to be worse."""
RATES = (0.00025, 0.0005, 0.001)
SYNCHRONOUS_RATES = (0.0005, 0.001, 0.002)


def comparisons(
    alone: Training,
    numbers: tuple[int, ...],
    rates: tuple[float, ...],
    synchronous_rates: tuple[float, ...],
) -> Iterator[Comparison]:
    """Yield the comparisons of both methods with one learner.

    Args:
        alone: the training of one learner.
        numbers: the numbers of learners.
        rates: the rates from which one learner chooses first.
        synchronous_rates: those from which synchronous Adam chooses first.
    """
    one = Arm(cell=alone, rates=rates)
    for learners in numbers:
        whole = replace(alone, learners=learners)
        options = (("period", PERIOD), ("warmup", whole.steps // 5))
        bmuf = replace(whole, algorithm="bmuf_adam", options=options)
        stays = Comparison(
            name="bmuf_adam",
            arm=Arm(cell=bmuf, rates=rates, tuned_on=alone),
            against="one learner",
            reference=one,
            question=Question(LIMIT),
        )
        yield stays
        yield replace(
            stays,
            name="allreduce: synchronous Adam",
            arm=Arm(cell=whole, rates=synchronous_rates),
            question=Question(LIMIT, "at least"),
            counts=learners >= COUNT_FROM,
        )


def claim(asked: Iterator[Comparison], problem: str) -> Claim:
    """Return the claim.

    Args:
        asked: its comparisons.
        problem: the text of the problem.
    """
    return Claim(
        text=(
            f"Synchronous Adam is at least {LIMIT:g} % worse than one learner from "
            f"{COUNT_FROM} learners on, and BMUF-Adam is not more than {LIMIT:g} % "
            "worse."
        ),
        source="Chen, Ding and Huo, ICASSP 2020, tables 2 and 3",
        setting=(
            f"A learner's step has {ALONE.batch} samples, and all trainings see "
            "equally many. One learner and synchronous Adam have their best rates, and "
            "BMUF-Adam has that of one learner. The rate is constant after a linear "
            f"warm-up over a tenth of the steps. Blocks have {PERIOD} steps. In the "
            "first fifth of the steps, blocks end in a plain average; after that, "
            f"block momentum is 1 - 1/N. The problem is a {problem}."
        ),
        comparisons=tuple(asked),
    )


def _blstm(problem: str) -> Claim:
    """Return the claim about a problem with a BLSTM and 16 learners."""
    alone = replace(ALONE, lr=0.0, samples=32_768, problem=problem)
    rates, synchronous = (0.001, 0.002, 0.004), (0.002, 0.004, 0.008)
    return claim(comparisons(alone, (16,), rates, synchronous), problem)


CLAIMS = {
    "bmuf_adam_sync": claim(
        comparisons(
            replace(ALONE, lr=0.0, samples=65_536), NUMBERS, RATES, SYNCHRONOUS_RATES
        ),
        DIGITS,
    ),
    "bmuf_adam_sync_labels": _blstm(LABELS),
    "bmuf_adam_sync_strings": _blstm(STRINGS),
}
