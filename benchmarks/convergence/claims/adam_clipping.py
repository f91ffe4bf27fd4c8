"""Where each learner clips its own gradient, averaging models costs no loss.

The claim is this project's own. A learner's gradient has more noise than that of
all-reduce, and so a larger norm. A user who clips gradients to a norm that all-reduce
seldom exceeds then clips nearly every gradient of a learner. Adam divides by the size
of the gradients that it gets, so that this changes less than it would with SGD; the
comparison says how much. Beside it stands a norm that grows with the noise, by the root
of the number of learners: each learner's gradients exceed it as seldom as the gradients
of all-reduce exceed theirs.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE, STEPS
from convergence.paired import Question
from convergence.training import DIGITS

LEARNERS = 16
NORM = 1.5
"""All-reduce's gradients have a norm of about 1.2, a learner's of about 4.5."""

METHODS = {
    "adpsgd": ("adpsgd", (("second_moment", "consistent"),)),
    "local_sgd, period 8": (
        "local_sgd",
        (("period", 8), ("second_moment", "consistent")),
    ),
}
"""The name of a method -> its algorithm and options."""


def _comparisons() -> Iterator[Comparison]:
    samples = STEPS[LEARNERS] * LEARNERS * ALONE.batch
    whole = replace(ALONE, learners=LEARNERS, samples=samples, clip=NORM)
    for factor in (1.0, math.sqrt(LEARNERS)):
        for name, (algorithm, options) in METHODS.items():
            norm = NORM * factor
            cell = replace(whole, algorithm=algorithm, options=options, clip=norm)
            yield Comparison(
                name=f"{name}, norm {norm:g}",
                arm=Arm(cell=cell),
                against=f"allreduce, norm {NORM:g}",
                reference=Arm(cell=whole),
                question=Question(2.0),
                counts=factor == 1.0,
            )


CLAIM = Claim(
    text=(
        f"With {LEARNERS} learners that clip their own gradients to a norm of "
        f"{NORM:g}, AD-PSGD and Local SGD with Adam and `second_moment: consistent` "
        "are not more than 2 % worse than all-reduce, which clips the mean gradient."
    ),
    source="this project, `docs/algorithms/optimizers.md`",
    setting=(
        f"All trainings use Adam with a learning rate of {ALONE.lr:g}, and a learner's "
        f"step has {ALONE.batch} samples. The rate is constant after a linear warm-up "
        f"over a tenth of the steps. The problem is a {DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
)

CLAIMS = {"adam_clipping": CLAIM}
