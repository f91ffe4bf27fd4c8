"""With 16 learners, Local SGD with `keep` sends 100 times fewer bytes at no loss.

The claim is this project's own; see `fewer_bytes`. Each learner sends what it keeps to
all others, so that more learners can keep less for the same bytes.
"""

from dataclasses import replace

from convergence.claim import Claim
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.compressed import comparisons
from convergence.training import Training

LEARNERS, STEPS = 16, 2000
FEWER = (8, 0.0157)
"""The period and the share with which 100 times fewer bytes are sent."""
WHOLE: Training = replace(
    ALONE, learners=LEARNERS, samples=STEPS * LEARNERS * ALONE.batch
)

CLAIM = Claim(
    text=(
        f"With {LEARNERS} learners, Local SGD that sends 100 times fewer bytes than "
        "DDP, by compressed averages, is not more than 1 % worse than all-reduce."
    ),
    source="this project, `espnet_distopt/algorithms/block/compression.py`",
    setting=(
        f"{SETTING} Bytes are those of a large model. There were 5 seeds at first, and "
        "3 more because these did not decide."
    ),
    comparisons=tuple(comparisons(WHOLE, [FEWER], FEWER)),
    seeds=tuple(range(10, 18)),
)
