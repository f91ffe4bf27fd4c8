"""Extrapolating Adam's moments at the end of a block is better than averaging them.

The claim is that of the paper's table 1, with blocks of 8 steps and 4 to 64 workers.
The largest number, which takes longest, is a claim of its own: block momentum builds
up over as many blocks as there are learners, so these trainings have twice as many.
"""

from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE
from convergence.paired import Question
from convergence.training import DIGITS

PERIOD = 8
BLOCKS = {4: 128, 16: 128, 32: 96}
"""Learners -> the blocks of a training."""


def comparison(learners: int, blocks: int) -> Comparison:
    """Return the comparison of extrapolated moments with averaged ones.

    Args:
        learners: the number of learners.
        blocks: the number of blocks of a training.
    """
    steps = PERIOD * blocks
    cell = replace(
        ALONE,
        algorithm="bmuf_adam",
        learners=learners,
        samples=steps * learners * ALONE.batch,
    )

    def arm(moments: str) -> Arm:
        options = {"period": PERIOD, "warmup": steps // 5, "moments": moments}
        return Arm(cell=replace(cell, options=tuple(options.items())))

    return Comparison(
        name="bmuf_adam, extrapolated",
        arm=arm("extrapolate"),
        against="bmuf_adam, averaged",
        reference=arm("average"),
        question=Question(0.0),
    )


def claim(blocks: dict[int, int]) -> Claim:
    """Return the claim about some numbers of learners.

    Args:
        blocks: the number of learners -> the blocks of a training.
    """
    numbers = ", ".join(map(str, blocks))
    return Claim(
        text=(
            f"BMUF-Adam with {numbers} learners is better with extrapolated moments "
            "than with averaged ones."
        ),
        source="Chen, Ding and Huo, ICASSP 2020, table 1",
        setting=(
            f"All trainings use Adam with a learning rate of {ALONE.lr:g} and batches "
            f"of {ALONE.batch} samples. The rate is constant after a linear warm-up "
            f"over a tenth of the steps. Blocks have {PERIOD} steps. In the first "
            "fifth of the steps, blocks end in a plain average; after that, block "
            f"momentum is 1 - 1/N. The problem is a {DIGITS}."
        ),
        comparisons=tuple(comparison(n, count) for n, count in blocks.items()),
    )


CLAIMS = {
    "bmuf_adam_moments": claim(BLOCKS),
    "bmuf_adam_moments_64": claim({64: 128}),
}
