"""With four learners, Local SGD with `keep` sends 100 times fewer bytes at no loss.

The claim is this project's own. Those of SparseLoCo (arXiv 2508.15706), which says that
1 to 3 % of the entries at 2 bits are enough, are about large language models.
"""

from dataclasses import replace

from convergence.claim import Claim
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.compressed import comparisons
from convergence.training import Training

LEARNERS, STEPS = 4, 2000
FEWER = (8, 0.074)
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
        f"{SETTING} Bytes are those of a large model. There were 10 seeds at first, "
        "and 15 more because these did not decide."
    ),
    comparisons=tuple(comparisons(WHOLE, [FEWER], FEWER)),
    seeds=tuple(range(10, 35)),
)
