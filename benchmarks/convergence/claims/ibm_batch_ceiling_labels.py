"""AD-PSGD converges at 3 times the largest batch of all-reduce, with a BLSTM.

IBM's claim (`ibm_batch_ceiling`) is about a BLSTM that labels frames, which is the
problem here, on a small scale.
"""

from dataclasses import replace

from convergence.ceiling import Ladder, claim
from convergence.claims.ibm_batch_ceiling import SCHEDULE, SMALLEST
from convergence.training import LABELS

CLAIM = claim(
    Ladder(
        smallest=replace(SMALLEST, problem=LABELS, samples=62_208),
        rates=(0.15, 0.3, 0.6),
        rungs=4,
    ),
    "a small BLSTM and momentum SGD",
    f"The optimizer is SGD with momentum 0.9. {SCHEDULE} The problem is a {LABELS}.",
)
