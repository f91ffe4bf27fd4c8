"""SlowMo: slow momentum over local steps (Wang et al., ICLR 2020; arXiv 1910.00643).

    u_n = beta u_{n-1} + (x_0 - mean_i x_tau^i) / lr_n
    x   = x_0 - alpha lr_n u_n

is the filter of `bmuf` (CBM) with Delta_n = -alpha lr_n u_n. The buffer u does not
depend on the learning rate. So Delta_{n-1} is multiplied by lr_n / lr_{n-1} before use,
for each parameter group on its own. The paper has one lr_n in all steps of a block. If
a schedule changes it within the block, lr_n is here the mean over the steps that the
optimizer has taken in it, and over the learners: the one rate with which the same
gradients would have led as far. The rate at the block's end, where a cycle of a
schedule comes near 0, would make a huge u_n of what larger rates have done before.

If lr_n is 0, u_n is not defined, because it is divided by lr_n: u is then kept as it
is, and the next block of this group starts at x_0 + alpha (mean - x_0), which is x_0.

    paper     here
    tau       `period`
    beta      `momentum`
    alpha     `block_lr`
"""

from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.block.rule import BlockRule, MomentsConfig


@dataclass(frozen=True, kw_only=True)
class SlowMoConfig(MomentsConfig):
    """Options of `slowmo`.

    Attributes:
        period: number of steps in a block.
        delay: steps of the next block that hide the average, see `delayed`.
        fragments: parts of the model that take turns in ending a block, see `bmuf`.
        per_node: number of learners on a node, which is one worker, see `bmuf`.
        exchange: bfloat16 sends half the bytes of float32, see `bfloat16`.
        first_moment_every: blocks from one average of this moment to the next.
        second_moment_every: the same for Adam's second moment.
        keep: share of the parameters whose changes are sent, see `compression`.
        bits: bits of a change that is sent with `keep`.
        momentum: slow momentum (beta). The best value depends on the number of
            learners: it is smaller with few of them, and always smaller than the
            1 - 1/N of block momentum.
        block_lr: slow learning rate (alpha).
        moments: treatment of the optimizer's moments at the end of a block: reset,
            local (left alone) or average.
    """

    momentum: float = 0.5
    block_lr: float = 1.0
    moments: Literal["reset", "local", "average"] = "reset"

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of classical block momentum, following the learning rate."""
        return BlockRule(
            momentum=self.momentum,
            block_lr=self.block_lr,
            follows_lr=True,
            moments=self.moments,
        )
