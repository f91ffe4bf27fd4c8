"""The rule by which a block of local steps ends.

BMUF, Local SGD, SlowMo and DiLoCo are one algorithm (see `bmuf`). They differ only in
the numbers of a `BlockRule`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from espnet_distopt.algorithms.block.moments import Fate
from espnet_distopt.algorithms.synchronous.node import check_per_node
from espnet_distopt.errors import InputError

HORIZON = 1000.0
"""The number of updates in which a filter sets in that has no `warmup`: the memory of
Adam's second moment, 1 / (1 - b2), with its default b2. So the filter grows as the
moment does whose estimate the steps depend on."""


@dataclass(frozen=True, kw_only=True)
class BlockRule:
    """The rule by which the mean of a block becomes the start of the next one.

    Attributes:
        momentum: block momentum (eta), in [0, 1).
        block_lr: block learning rate (zeta), above 0.
        nesterov: whether blocks start at the look-ahead (NBM) rather than at the global
            model (CBM).
        warmup: number of steps in which blocks are plain averages, before the filter
            sets in at once; None means that it sets in by itself (`at`).
        follows_lr: whether the filtered update grows and shrinks with the learning
            rate; it is not used together with nesterov.
        evaluates_start: whether the model to evaluate is the start of the next block.
        moments: treatment of the optimizer's moments at the end of a block.
        averaged_batches: the number of batches for which Adam's second moment is
            corrected, see `optimizers.consistent`; 1 leaves it alone.

    Raises:
        InputError: a number is out of range.
    """

    momentum: float
    block_lr: float = 1.0
    nesterov: bool = False
    warmup: int | None = 0
    follows_lr: bool = False
    evaluates_start: bool = False
    moments: Literal[Fate, "local"] = "local"
    averaged_batches: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum}")
        if self.warmup is not None and self.warmup < 0:
            raise InputError(f"warmup must be >= 0, not {self.warmup}")
        if not 0 < self.block_lr < math.inf:
            raise InputError(f"block_lr must be > 0 and finite, not {self.block_lr}")

    def at(self, agreeing: float) -> tuple[float, float]:
        """Return the block momentum and block learning rate of a filter that grows.

        Its part in the block, 1 - exp(-agreeing / HORIZON), is 0 for a plain average.

        Args:
            agreeing: number of updates in the blocks since one has last moved the model
                against the filtered update before it.
        """
        part = -math.expm1(-agreeing / HORIZON)
        return part * self.momentum, 1 + part * (self.block_lr - 1)

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
            what a block has changed in them, in half the bytes, see `bfloat16`.
        keep: the share of the parameters whose changes are sent at the end of a block,
            the largest ones; what is not sent is remembered, see `compression`. 1
            averages all parameters in full precision.
        bits: the bits of a change that is sent with `keep`, 8 or 2.

    Raises:
        InputError: a number is out of range, or options exclude each other.
    """

    period: int = 8
    delay: int = 0
    fragments: int = 1
    per_node: int = 1
    exchange: Literal["float32", "bfloat16"] = "float32"
    keep: float = 1.0
    bits: Literal[8, 2] = 8

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
        elif self.bits != 8:
            raise InputError(
                f"bits: {self.bits} needs keep below 1, because it is the changes sent "
                "with keep that have so many bits"
            )

    @property
    def moments_every(self) -> tuple[int, int]:
        """The blocks from one average to the next, of the first and second moment."""
        return 1, 1

    @property
    def starts_in(self) -> torch.dtype | None:
        """The precision of the moments at a block's start; None is the usual one."""
        return None

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
                f"keep: {self.keep} sends changes in {self.bits} bits: it needs "
                f"exchange: float32, not {self.exchange}"
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
class MomentsConfig(BlockConfig):
    """Options of the algorithms of the family that can average moments.

    Attributes:
        first_moment_every: the number of blocks from one average of Adam's first moment
            (or of SGD's momentum) to the next, with moments: average. The moments of
            DES-LOC (Iacob et al. 2025, arXiv 2505.22549) are averaged every 3 blocks,
        second_moment_every: and the second moments every 6, because they change slowly.

    Raises:
        InputError: a number is out of range, or options exclude each other.
    """

    first_moment_every: int = 1
    second_moment_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        moments = self.rule(workers=1).moments
        for name in ("first_moment_every", "second_moment_every"):
            blocks = getattr(self, name)
            if blocks < 1:
                raise InputError(f"{name} must be >= 1, not {blocks}")
            if blocks > 1 and moments != "average":
                raise InputError(
                    f"{name}: {blocks} needs moments: average, not {moments}"
                )
            if blocks > 1 and self.exchange != "float32":
                raise InputError(
                    f"{name}: {blocks} needs exchange: float32, not {self.exchange}"
                )

    @property
    def moments_every(self) -> tuple[int, int]:
        """The blocks from one average to the next, of the first and second moment."""
        return self.first_moment_every, self.second_moment_every
