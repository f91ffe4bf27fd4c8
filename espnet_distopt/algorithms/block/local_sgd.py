"""Local SGD, or periodic model averaging (Stich, ICLR 2019; arXiv 1805.09767).

Learners step on their own and go on from their mean after every `period` steps: block
momentum 0, block learning rate 1 (see `bmuf`).

    paper     here
    H         `period`
"""

from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.block.rule import BlockConfig, BlockRule


@dataclass(frozen=True, kw_only=True)
class LocalSgdConfig(BlockConfig):
    """Options of `local_sgd`.

    Attributes:
        period: steps in a block.
        delay: steps of the next block that hide the average, see `block_late`.
        moments: what becomes of the optimizer's moments at the end of a block: local
            (left alone), average or reset.
    """

    moments: Literal["local", "average", "reset"] = "local"

    def rule(self, size: int) -> BlockRule:
        """Plain averaging."""
        return BlockRule(momentum=0.0, moments=self.moments)
