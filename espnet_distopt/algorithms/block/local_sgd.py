"""Local SGD, or periodic model averaging (Stich, ICLR 2019; arXiv 1805.09767).

Each learner steps on its own. After every `period` steps all of them go on from the
mean of their parameters. That is `bmuf` with block momentum 0 and block learning rate
1.

    paper     here
    H         `period`
"""

from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.block.rule import BlockRule, MomentsConfig


@dataclass(frozen=True, kw_only=True)
class LocalSgdConfig(MomentsConfig):
    """Options of `local_sgd`.

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
        moments: treatment of the optimizer's moments at the end of a block: local (left
            alone), average or reset.
        second_moment: consistent corrects Adam's second moment, which is that of this
            worker's own batches, to that of all workers' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    moments: Literal["local", "average", "reset"] = "local"
    second_moment: Literal["consistent", "local"] = "consistent"

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of plain averaging."""
        batches = workers if self.second_moment == "consistent" else 1
        return BlockRule(momentum=0.0, moments=self.moments, averaged_batches=batches)
