"""SlowMo: slow momentum over local steps (Wang et al., ICLR 2020; arXiv 1910.00643).

    u_n = beta u_{n-1} + (x_0 - mean_i x_tau^i) / lr_n
    x   = x_0 - alpha lr_n u_n

is the filter of `bmuf` (CBM) with Delta_n = -alpha lr_n u_n. The buffer u does not
depend on the learning rate, so Delta_{n-1} is multiplied by lr_n / lr_{n-1} before use,
for each parameter group on its own. lr_n is what the optimizer's groups say when the
block ends. Where that is 0, u has no meaning: it is kept as it is, and the group goes
on from where the block has taken it, which is nowhere if all its steps had lr 0.

    paper     here
    tau       `period`
    beta      `momentum`
    alpha     `block_lr`
"""

from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.block.rule import BlockConfig, BlockRule


@dataclass(frozen=True, kw_only=True)
class SlowMoConfig(BlockConfig):
    """Options of `slowmo`.

    Attributes:
        period: steps in a block.
        delay: steps of the next block that hide the average, see `block_late`.
        momentum: slow momentum. What suits depends on the number of learners: less with
            few of them, and less than block momentum's 1 - 1/N throughout.
        block_lr: slow learning rate.
        moments: what becomes of the optimizer's moments at the end of a block: reset,
            local (left alone) or average.
    """

    momentum: float = 0.5
    block_lr: float = 1.0
    moments: Literal["reset", "local", "average"] = "reset"

    def rule(self, size: int) -> BlockRule:
        """Classical block momentum that follows the learning rate."""
        return BlockRule(
            momentum=self.momentum,
            block_lr=self.block_lr,
            follows_lr=True,
            moments=self.moments,
        )
