"""BMUF-Adam trains as well as one learner that sees the same samples in small batches.

The claim is that of the paper, which reports almost no loss with up to 64 workers, and
that averaging the moments instead of extrapolating them loses the more the more workers
there are. Block momentum needs many times N blocks: its gain reaches 63 % of its final
value after N of them. So these trainings have at least 8 N blocks.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE
from convergence.paired import Question
from convergence.training import DIGITS

PERIOD = 8
BLOCKS = {4: 256, 16: 256, 32: 256, 64: 512}
"""Learners -> the blocks of a training."""
SMALL_BETA1 = 0.5
QUESTION = Question(2.0)


def comparison(
    learners: int, name: str, counts: bool, beta1: float = 0.9, **options: Any
) -> Comparison:
    """Return the comparison of BMUF-Adam with one learner.

    Args:
        learners: the number of learners.
        name: what is special about the method.
        counts: whether the verdict depends on the answer.
        beta1: the first of Adam's betas, in the method only.
        options: options of `bmuf_adam`.
    """
    steps = PERIOD * BLOCKS[learners]
    one = replace(ALONE, samples=steps * learners * ALONE.batch)
    given = {"period": PERIOD, "warmup": steps // 5, **options}
    bmuf = replace(one, algorithm="bmuf_adam", learners=learners, beta1=beta1)
    return Comparison(
        name=name,
        arm=Arm(cell=replace(bmuf, options=tuple(given.items()))),
        against="one learner",
        reference=Arm(cell=one),
        question=QUESTION,
        counts=counts,
    )


def _comparisons() -> Iterator[Comparison]:
    for learners in BLOCKS:
        yield comparison(learners, "bmuf_adam", True)
    for learners in (16, 32):
        name = "bmuf_adam, moments averaged"
        yield comparison(learners, name, False, moments="average")
    yield comparison(32, f"bmuf_adam, beta1 {SMALL_BETA1:g}", False, beta1=SMALL_BETA1)


CLAIM = Claim(
    text=(
        "BMUF-Adam with 4 to 64 learners is not more than 2 % worse than one learner "
        "that trains on the same samples in batches as small as each learner's."
    ),
    source="Chen, Ding and Huo, ICASSP 2020",
    setting=(
        f"All trainings use Adam with a learning rate of {ALONE.lr:g} and batches of "
        f"{ALONE.batch} samples, and beta1 is 0.9 unless a row says otherwise. The "
        "rate is constant after a linear warm-up over a tenth of the steps. Blocks "
        f"have {PERIOD} steps. In the first fifth of the steps, blocks end in a plain "
        "average, because block momentum would amplify the large first steps of a "
        "random model; after that, block momentum is 1 - 1/N. Adam's moments are "
        f"extrapolated unless a row says otherwise. The problem is a {DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
)

CLAIMS = {"bmuf_adam_no_loss": CLAIM}
