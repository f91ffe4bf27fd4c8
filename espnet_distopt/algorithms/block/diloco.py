"""DiLoCo: an outer optimizer over many local steps (Douillard et al. 2023, 2311.08105).

The outer gradient is theta_init - mean_i theta_i. The outer optimizer is SGD with
Nesterov momentum as PyTorch implements it, and that is the filter of `bmuf` (NBM). One
model, the look-ahead theta_init, is held by the outer optimizer, starts the blocks and
is evaluated. Learners keep their own moments.

    paper              here
    H                  `period`
    outer momentum     `momentum`
    outer lr           `block_lr`
"""

from dataclasses import dataclass

from espnet_distopt.algorithms.block.rule import BlockConfig, BlockRule


@dataclass(frozen=True, kw_only=True)
class DilocoConfig(BlockConfig):
    """Options of `diloco`.

    Attributes:
        period: number of steps in a block.
        delay: steps of the next block that hide the average, see `delayed`.
        fragments: parts of the model that take turns in ending a block, see `bmuf`.
        per_node: number of learners on a node, which is one worker, see `bmuf`.
        exchange: bfloat16 sends half the bytes of float32, see `bfloat16`.
        keep: share of the parameters whose changes are sent, see `compression`.
        bits: bits of a change that is sent with `keep`.
        momentum: Nesterov momentum of the outer optimizer.
        block_lr: learning rate of the outer optimizer.
        warmup: number of steps before the outer optimizer sets in, all at once; until
            then blocks are plain averages. None lets it set in by itself, see `bmuf`.
    """

    period: int = 500
    momentum: float = 0.9
    block_lr: float = 0.7
    warmup: int | None = None

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of Nesterov block momentum, evaluated at the look-ahead."""
        return BlockRule(
            momentum=self.momentum,
            block_lr=self.block_lr,
            nesterov=True,
            warmup=self.warmup,
            evaluates_start=True,
        )
