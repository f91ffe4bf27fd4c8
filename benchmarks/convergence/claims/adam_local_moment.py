"""Where each learner's Adam sees small batches of its own, averaging models costs loss.

The claim is this project's own, and the reason for `second_moment: consistent`: each
learner divides by the second moment of a batch N times smaller than that of all-reduce,
so the mean of the learners takes steps that are too short.
"""

from convergence.averaging import comparisons
from convergence.claim import SEEDS, Claim
from convergence.claims.no_loss_adam import ALONE, SETTING, STEPS
from convergence.paired import Question

CLAIM = Claim(
    text=(
        "With `second_moment: local`, AD-PSGD, H-ADPSGD, D-PSGD and Local SGD with "
        "Adam are at least 2 % worse than all-reduce with the same settings."
    ),
    source="this project, `espnet_distopt/optimizers/consistent.py`",
    setting=SETTING,
    comparisons=tuple(comparisons(ALONE, STEPS, "local", Question(2.0, "at least"))),
    # The differences are so large that three seeds tell.
    seeds=SEEDS[:3],
)
