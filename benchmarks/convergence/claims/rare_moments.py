"""Local SGD whose moments are averaged more rarely than its parameters loses nothing.

The claim is that of DES-LOC (Iacob et al., arXiv 2505.22549), which is about language
models: the first moment is averaged every 3 blocks and the second one every 6, so that
half as many bytes are sent as with an average of all in each block.
"""

from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.paired import Question

LEARNERS, PERIOD, STEPS = 4, 8, 2000
OPTIONS = {"period": PERIOD, "moments": "average"}
RARE = {"first_moment_every": 3, "second_moment_every": 6}

_ONE = replace(
    ALONE,
    algorithm="local_sgd",
    learners=LEARNERS,
    samples=STEPS * LEARNERS * ALONE.batch,
)

CLAIM = Claim(
    text=(
        f"Local SGD with {LEARNERS} learners that averages Adam's first moment every 3 "
        "blocks and the second one every 6 is not more than 2 % worse than with an "
        "average of both in each block."
    ),
    source="DES-LOC, arXiv 2505.22549",
    setting=f"{SETTING} Blocks have {PERIOD} steps.",
    comparisons=(
        Comparison(
            name="local_sgd, moments every 3 and 6 blocks",
            arm=Arm(cell=replace(_ONE, options=tuple((OPTIONS | RARE).items()))),
            against="local_sgd, moments in each block",
            reference=Arm(cell=replace(_ONE, options=tuple(OPTIONS.items()))),
            question=Question(2.0),
            counts=True,
        ),
    ),
    seeds=tuple(range(10)),
)
