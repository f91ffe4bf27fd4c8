"""The options of `bmuf`, `bmuf_adam`, `local_sgd`, `slowmo` and `diloco`.

The five are one algorithm, see `bmuf`. They differ only in their options, and in the
numbers of a `BlockRule`, by which a block of local steps ends.
"""

import math
from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.synchronous.node import check_per_node
from espnet_distopt.errors import InputError

MomentPolicy = Literal["extrapolate", "average", "local", "reset"]
"""What becomes of the optimizer's moments at the end of a block: they are carried ahead
with the parameters, averaged, left alone, or set to zero."""


@dataclass(frozen=True, kw_only=True)
class BlockRule:
    """The rule by which the mean of a block becomes the start of the next one.

    Attributes:
        momentum: block momentum (eta), in [0, 1).
        block_lr: block learning rate (zeta), above 0.
        nesterov: whether blocks start at the look-ahead (NBM) rather than at the global
            model (CBM).
        warmup: number of steps in which blocks are plain averages, before the filter
            sets in at once; None means that it sets in by itself (`BlockFilter`).
        follows_lr: whether the filtered update grows and shrinks with the learning
            rate; it is not used together with nesterov.
        evaluates_start: whether the model to evaluate is the start of the next block.
        moments: treatment of the optimizer's moments at the end of a block.
        corrected_workers: the number of workers, whose batches Adam's second moment is
            corrected for while a block goes as far as their mean (`BlockFilter.gain`),
            see `optimizers.consistent`; 1 leaves it alone.

    Raises:
        InputError: a number is out of range.
    """

    momentum: float
    block_lr: float = 1.0
    nesterov: bool = False
    warmup: int | None = 0
    follows_lr: bool = False
    evaluates_start: bool = False
    moments: MomentPolicy = "local"
    corrected_workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum}")
        if self.warmup is not None and self.warmup < 0:
            raise InputError(f"warmup must be >= 0, not {self.warmup}")
        if not 0 < self.block_lr < math.inf:
            raise InputError(f"block_lr must be > 0 and finite, not {self.block_lr}")

    @property
    def filters(self) -> bool:
        """Whether a block can start elsewhere than at the mean of the block before."""
        return self.momentum > 0 or self.block_lr != 1

    @property
    def gain(self) -> float:
        """How many times as far as its mean a block goes, in the steady state (BM5)."""
        return self.block_lr / (1 - self.momentum)


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Options of every algorithm of the family.

    Attributes:
        period: number of steps in a block (tau).
        delay: number of steps of the next block during which the average of a block is
            computed, see `delayed`; 0 means that learners wait for the average.
        fragments: number of parts of the model that take turns: every period /
            fragments steps the block of one of them ends, see `bmuf`.
        per_node: number of learners on each node; ranks are numbered node by node. The
            learners of a node average their gradients in every step and so are one
            worker; blocks are averaged over the workers.
        exchange: float32 averages parameters and moments as they are; bfloat16 sends
            what a block has changed in them, in half the bytes, see `compression`.
        keep: the share of the parameters whose changes are sent at the end of a block,
            the largest ones; what is not sent is remembered, see `compression`. 1
            averages all parameters in full precision.

    Raises:
        InputError: a number is out of range, or options exclude each other.
    """

    period: int = 8
    delay: int = 0
    fragments: int = 1
    per_node: int = 1
    exchange: Literal["float32", "bfloat16"] = "float32"
    keep: float = 1.0

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period must be >= 1, not {self.period}")
        if self.fragments < 1 or self.period % self.fragments:
            raise InputError(
                f"fragments must divide period, which is {self.period}, and "
                f"{self.fragments} does not"
            )
        turn, name = self.period // self.fragments, "period"
        if self.fragments > 1:
            name += f" / {self.fragments} fragments"
        if not 0 <= self.delay < turn:
            raise InputError(
                f"delay must be in [0, {name}), that is at most {turn - 1}, not "
                f"{self.delay}"
            )
        check_per_node(self.per_node)
        rule = self.rule(workers=1)  # A BlockRule checks its own numbers.
        if self.compresses:
            self._check_keep(rule)

    @property
    def compresses(self) -> bool:
        """Whether learners send a part of their changes only."""
        return self.keep != 1

    def _check_keep(self, rule: BlockRule) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(f"keep must be in (0, 1], not {self.keep}")
        if self.delay:
            raise InputError(
                f"keep: {self.keep} needs delay: 0, not {self.delay}, because what the "
                "learners send at the end of a block is not sent beside the next one"
            )
        if self.exchange != "float32":
            raise InputError(
                f"keep: {self.keep} sends changes in 8 bits: it needs exchange: "
                f"float32, not {self.exchange}"
            )
        if rule.moments not in ("local", "reset"):
            raise InputError(
                f"keep: {self.keep} needs moments: local or reset, not {rule.moments}, "
                "because moments are sent in full precision"
            )

    def rule(self, workers: int) -> BlockRule:
        """Return the rule for a number of workers, which are learners or nodes."""
        raise NotImplementedError

    def advice(self, workers: int) -> str:
        """Return what `Algorithm.advice` says."""
        return ""


@dataclass(frozen=True, kw_only=True)
class BmufConfig(BlockConfig):
    """Options of `bmuf`: those of `BlockConfig`, and these.

    Attributes:
        momentum: block momentum (eta); None means 1 - 1/N, where N is the number of
            workers.
        block_lr: block learning rate (zeta).
        warmup: number of steps before momentum sets in, all at once; until then blocks
            are plain averages. None lets it set in by itself, see `bmuf`.
        nesterov: start blocks at the look-ahead (NBM) rather than at the model (CBM).
        moments: treatment of the optimizer's moments at the end of a block; extrapolate
            is that of BMUF-Adam.
        second_moment: consistent corrects Adam's second moment to that of N / gain
            batches together: of all workers' while blocks are plain averages, and of
            none but its own once momentum moves the model N times as far. local leaves
            it that of this worker's own batches, as in the paper on BMUF-Adam.
    """

    momentum: float | None = None
    block_lr: float = 1.0
    warmup: int | None = None
    nesterov: bool = True
    moments: MomentPolicy = "average"
    second_moment: Literal["consistent", "local"] = "consistent"

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of block momentum for a number of workers."""
        return BlockRule(
            corrected_workers=workers if self.second_moment == "consistent" else 1,
            momentum=1 - 1 / workers if self.momentum is None else self.momentum,
            block_lr=self.block_lr,
            nesterov=self.nesterov,
            warmup=self.warmup,
            moments=self.moments,
        )

    def advice(self, workers: int) -> str:
        """Return advice on the learning rate; "" if momentum sets in by itself."""
        gain = self.rule(workers).gain
        if gain <= 1 or self.warmup is None:
            return ""
        return (
            f"block momentum moves the model {gain:.3g} times as far as one of the "
            f"{workers} workers goes: it needs a learning rate for one worker's share "
            "of the batch, which is smaller than DDP's for the whole batch (begin with "
            f"{1 / math.sqrt(gain):.2g} of that)"
        )


@dataclass(frozen=True, kw_only=True)
class BmufAdamConfig(BmufConfig):
    """Options of `bmuf_adam`: those of `bmuf`, but moments are extrapolated."""

    moments: MomentPolicy = "extrapolate"


@dataclass(frozen=True, kw_only=True)
class LocalSgdConfig(BlockConfig):
    """Options of `local_sgd`: those of `BlockConfig`, and these.

    Local SGD (Stich, ICLR 2019; arXiv 1805.09767), or periodic model averaging, is
    `bmuf` with block momentum 0 and block learning rate 1: after every `period` steps
    (H in the paper) all learners go on from the mean of their parameters.

    Attributes:
        moments: treatment of the optimizer's moments at the end of a block.
        second_moment: consistent corrects Adam's second moment, which is that of this
            worker's own batches, to that of all workers' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    moments: Literal["local", "average", "reset"] = "local"
    second_moment: Literal["consistent", "local"] = "consistent"

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of plain averaging."""
        batches = workers if self.second_moment == "consistent" else 1
        return BlockRule(momentum=0.0, moments=self.moments, corrected_workers=batches)


@dataclass(frozen=True, kw_only=True)
class SlowMoConfig(BlockConfig):
    """Options of `slowmo`: those of `BlockConfig`, and these.

    SlowMo is slow momentum over local steps (Wang et al., ICLR 2020; arXiv 1910.00643):

        u_n = beta u_{n-1} + (x_0 - mean_i x_tau^i) / lr_n
        x   = x_0 - alpha lr_n u_n

    That is the filter of `bmuf` (CBM) with Delta_n = -alpha lr_n u_n, which follows the
    learning rate, see `filter.LearningRates`.

    The paper has momentum from the first block, as with `warmup: 0`, and resets the
    moments of SGD.

    Attributes:
        momentum: slow momentum (beta). The best value depends on the number of
            learners: it is smaller with few of them, and always smaller than the
            1 - 1/N of block momentum.
        block_lr: slow learning rate (alpha).
        warmup: see `DilocoConfig`.
        moments: treatment of the optimizer's moments at the end of a block.
        second_moment: see `BmufConfig`.
    """

    momentum: float = 0.5
    block_lr: float = 1.0
    warmup: int | None = None
    moments: Literal["reset", "local", "average"] = "local"
    second_moment: Literal["consistent", "local"] = "consistent"

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of classical block momentum, following the learning rate."""
        return BlockRule(
            momentum=self.momentum,
            block_lr=self.block_lr,
            follows_lr=True,
            warmup=self.warmup,
            moments=self.moments,
            corrected_workers=workers if self.second_moment == "consistent" else 1,
        )


@dataclass(frozen=True, kw_only=True)
class DilocoConfig(BlockConfig):
    """Options of `diloco`: those of `BlockConfig`, and these.

    DiLoCo has an outer optimizer over many local steps (Douillard et al. 2023, arXiv
    2311.08105). The outer gradient is theta_init - mean_i theta_i. The outer optimizer
    is SGD with Nesterov momentum as PyTorch implements it, and that is the filter of
    `bmuf` (NBM). One model, the look-ahead theta_init, is held by the outer optimizer,
    starts the blocks and is evaluated. Learners keep their own moments.

    Attributes:
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
