"""With four learners, Local SGD with blocks of 100 steps costs no loss.

That is the simplest way to send 100 times fewer bytes than DDP, and the rival of
`fewer_bytes`, whose trainings these are compared with, too.
"""

from convergence.claim import Claim
from convergence.claims.no_loss_adam import SETTING
from convergence.compressed import Setting, comparison

LEARNERS = 4
FEWER = Setting(100, 1.0)
"""The period with which 100 times fewer bytes are sent, in full precision."""

CLAIM = Claim(
    text=(
        f"With {LEARNERS} learners, Local SGD that sends 100 times fewer bytes than "
        "DDP, by blocks of 100 steps, is not more than 1 % worse than all-reduce."
    ),
    source="this project, for comparison with `fewer_bytes`",
    setting=f"{SETTING} The row for contrast has short blocks.",
    comparisons=(
        comparison(LEARNERS, FEWER),
        comparison(LEARNERS, Setting(8, 1.0), counts=False),
    ),
    seeds=tuple(range(10, 20)),
)
