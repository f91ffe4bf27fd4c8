"""With four learners, Local SGD with `keep: 0.02` sends 300 times fewer bytes.

The claim, that this costs no loss, is this project's own; see `fewer_bytes`. It asks
how far one can go.
"""

from convergence.claim import Claim
from convergence.claims.fewer_bytes import LEARNERS, WHOLE
from convergence.claims.no_loss_adam import SETTING
from convergence.compressed import comparisons

FEWER = (8, 0.02)
"""The period and the share with which 341 times fewer bytes are sent."""

CLAIM = Claim(
    text=(
        f"With {LEARNERS} learners, Local SGD that sends 300 times fewer bytes than "
        "DDP, by compressed averages, is not more than 1 % worse than all-reduce."
    ),
    source="this project, `espnet_distopt/algorithms/block/compression.py`",
    setting=(
        f"{SETTING} Bytes are those of a large model. This was a further row of the "
        "claim `fewer_bytes` first, and became a claim after its seeds were in."
    ),
    comparisons=tuple(comparisons(WHOLE, [FEWER], FEWER)),
    seeds=tuple(range(10, 20)),
)
