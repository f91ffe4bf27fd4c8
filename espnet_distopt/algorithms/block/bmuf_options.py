"""The options of `bmuf` and `bmuf_adam`."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from espnet_distopt.algorithms.block.moments import Fate
from espnet_distopt.algorithms.block.rule import BlockRule, MomentsConfig
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BmufConfig(MomentsConfig):
    """Options of `bmuf` and `bmuf_adam`.

    Attributes:
        period: number of steps in a block (tau).
        delay: steps of the next block that hide the average, see `delayed`.
        fragments: parts of the model that take turns in ending a block, see `bmuf`.
        per_node: number of learners on a node, which is one worker, see `bmuf`.
        exchange: bfloat16 sends half the bytes of float32, see `bfloat16`.
        first_moment_every: blocks from one average of this moment to the next.
        second_moment_every: the same for Adam's second moment.
        keep: share of the parameters whose changes are sent, see `compression`.
        bits: bits of a change that is sent with `keep`.
        momentum: block momentum (eta); None means 1 - 1/N, where N is
            the number of workers.
        block_lr: block learning rate (zeta).
        warmup: number of steps before momentum sets in, all at once; until then blocks
            are plain averages. None lets it set in by itself, see `bmuf`.
        nesterov: start blocks at the look-ahead (NBM) rather than at the model (CBM).
        moments: treatment of the optimizer's moments at the end of a block:
            extrapolate (BMUF-Adam), average, local (left alone) or reset.
        start_moments: bfloat16 keeps the moments at a block's start, from which they
            are extrapolated, in half the memory, see `stochastic_rounding`.

    Raises:
        InputError: a number is out of range, or options exclude each other.
    """

    momentum: float | None = None
    block_lr: float = 1.0
    warmup: int | None = None
    nesterov: bool = True
    moments: Literal[Fate, "local"] = "average"
    start_moments: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.starts_in is not None and self.moments != "extrapolate":
            raise InputError(
                "start_moments: bfloat16 needs moments: extrapolate, not "
                f"{self.moments}, which keeps no moments of a block's start"
            )

    @property
    def starts_in(self) -> torch.dtype | None:
        """The precision of the moments at a block's start; None is the usual one."""
        return torch.bfloat16 if self.start_moments == "bfloat16" else None

    def rule(self, workers: int) -> BlockRule:
        """Return the rule of block momentum for a number of workers."""
        return BlockRule(
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

    moments: Literal[Fate, "local"] = "extrapolate"
