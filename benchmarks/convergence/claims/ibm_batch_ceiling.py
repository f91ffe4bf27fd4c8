"""AD-PSGD converges at 3 times the largest batch of all-reduce, with momentum SGD.

The claim is IBM's, who train by SGD with momentum. `ibm_batch_ceiling_labels` asks the
same of a BLSTM that labels frames, and `ibm_batch_ceiling_adam` asks it with Adam.
"""

from convergence.ceiling import Ladder, claim
from convergence.training import DIGITS, Training

LEARNERS = 16
SMALLEST = Training(
    algorithm="allreduce",
    learners=LEARNERS,
    batch=4,
    samples=248_832,  # The largest batch of 5, 81 times the smallest, has 48 steps.
    lr=0.0,
    seed=0,
    problem=DIGITS,
    schedule="constant",
)
SCHEDULE = "The rate is constant after a linear warm-up over a tenth of the steps."

CLAIM = claim(
    Ladder(smallest=SMALLEST, rates=(0.0125, 0.025, 0.05), rungs=5),
    "a small network and momentum SGD",
    f"The optimizer is SGD with momentum 0.9. {SCHEDULE} The problem is a {DIGITS}.",
)
