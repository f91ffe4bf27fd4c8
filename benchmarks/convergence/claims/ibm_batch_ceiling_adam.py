"""AD-PSGD converges at 3 times the largest batch of all-reduce, with Adam.

IBM's claim (`ibm_batch_ceiling`) is about SGD. Users of ESPnet have Adam, for which
AD-PSGD corrects the second moment to that of the whole batch.
"""

from dataclasses import replace

from convergence.ceiling import Ladder, claim
from convergence.claims.ibm_batch_ceiling import SCHEDULE, SMALLEST
from convergence.training import DIGITS

CLAIM = claim(
    Ladder(
        smallest=replace(SMALLEST, optim="adam"), rates=(0.0005, 0.001, 0.002), rungs=5
    ),
    "a small network and Adam",
    f"The optimizer is Adam, with `second_moment: consistent`. {SCHEDULE} The problem "
    f"is a {DIGITS}.",
)
