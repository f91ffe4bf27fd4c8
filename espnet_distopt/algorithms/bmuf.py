"""Blockwise model-update filtering (BMUF; Chen and Huo, ICASSP 2016) and BMUF-Adam.

Learners train on their own for a block of tau steps; then their mean is filtered with
block momentum into the global model, from which the next block starts:

    Delta_n = eta Delta_{n-1} + zeta (mean_i theta_i - theta_init)
    theta_t = theta_{t-1} + Delta_n
    CBM: theta_init = theta_t        NBM: theta_init = theta_t + eta Delta_n

    paper                     here
    tau                       `period` (or fewer steps, at the end of an epoch)
    eta, 1 - 1/N by default   `momentum`
    zeta                      `block_lr`
    theta_t, Delta_n          `theta`, `delta`: the global model is kept apart from the
                              look-ahead theta_init, which must never count twice
    rho_n                     `rho`: minibatches equivalent to Delta_n,
                              rho_n = eta rho_{n-1} + zeta tau_n

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020) carries Adam's moments along to theta_init,
see `block_moments`. Other rules for the end of a block make this algorithm Local SGD,
SlowMo and DiLoCo: see `local_sgd`, `slowmo` and `diloco`.
Cost for n bytes of parameters: 2n(N-1)/N a block, 6n(N-1)/N with Adam's moments.
Memory: 3P elements, 2P more when Adam's moments are extrapolated.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.block_moments import BlockMoments, Fate
from espnet_distopt.algorithms.block_rates import LearningRates
from espnet_distopt.algorithms.block_rule import BlockConfig, BlockRule
from espnet_distopt.effects import AllReduceMean, Effect, Program
from espnet_distopt.errors import InputError
from espnet_distopt.learner import Learner


@dataclass(frozen=True, kw_only=True)
class BmufConfig(BlockConfig):
    """Options of `bmuf` and `bmuf_adam`.

    Attributes:
        period: steps in a block (tau).
        momentum: block momentum (eta); None means 1 - 1/N.
        block_lr: block learning rate (zeta).
        warmup: steps before momentum sets in; until then blocks are plain averages. A
            model that starts from random parameters makes large steps at first, which
            momentum would amplify.
        nesterov: start blocks at the look-ahead (NBM) rather than at the model (CBM).
        moments: what becomes of the optimizer's moments at the end of a block:
            extrapolate (BMUF-Adam), average, local (left alone) or reset.
    """

    momentum: float | None = None
    block_lr: float = 1.0
    warmup: int = 0
    nesterov: bool = True
    moments: Literal[Fate, "local"] = "average"

    def rule(self, size: int) -> BlockRule:
        """Block momentum."""
        return BlockRule(
            momentum=1 - 1 / size if self.momentum is None else self.momentum,
            block_lr=self.block_lr,
            nesterov=self.nesterov,
            warmup=self.warmup,
            moments=self.moments,
        )


@dataclass(frozen=True, kw_only=True)
class BmufAdamConfig(BmufConfig):
    """Options of `bmuf_adam`: those of `bmuf`, with moments extrapolated."""

    moments: Literal[Fate, "local"] = "extrapolate"


class Bmuf(Algorithm):
    """Block momentum over local steps; moments kept, averaged, reset or extrapolated.

    Attributes:
        rule: how a block ends.
        theta: (P,) the global model.
        init: (P,) where the current block started.
        delta: (P,) the filtered block update.
        rho: minibatches equivalent to `delta`.
        blocks: how many have ended.
    """

    def __init__(self, config: BlockConfig, learner: Learner) -> None:
        self.rule = rule = config.rule(learner.size)
        self.theta = learner.params.detach().clone()
        self.init = self.theta.clone()
        self.delta = torch.zeros_like(self.theta)
        self.rho = 0.0
        self.blocks = 0
        self._period = config.period
        self._block_steps = 0
        self._some_ended = False
        self._updates = learner.updates
        self._size = learner.size
        self._moments = (
            None if rule.moments == "local" else BlockMoments(rule.moments, learner)
        )
        self._rates = LearningRates(learner) if rule.follows_lr else None

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters."""
        yield from super().start(learner)
        self.theta.copy_(learner.params)
        self.init.copy_(learner.params)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of the block, synchronise."""
        self._block_steps += 1
        if self._block_steps >= self._period:
            yield from self._end_block(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter block; join the blocks of learners with more data."""
        while True:
            everybody_ended = yield from self._end_block(learner, ended=True)
            if everybody_ended:
                return

    def next_stop(self, learner: Learner) -> int:
        """Stop at the end of a block: others may wait there already."""
        return learner.steps + self._period - self._block_steps

    def can_pause(self, learner: Learner) -> bool:
        """Not while others, who have less data, wait for the end of the epoch."""
        return not self._some_ended

    def _end_block(self, learner: Learner, ended: bool) -> Generator[Effect, Any, bool]:
        """Synchronise; returns whether every learner has come to its epoch's end."""
        steps = self._moments.steps() if self._moments else []
        rates = self._rates.current() if self._rates else []
        updates = float(learner.updates - self._updates)
        message = torch.tensor(
            [float(ended), updates, *rates, *steps],
            dtype=torch.float64,
            device=learner.params.device,
        )
        agreed = (yield AllReduceMean(message)).tolist()
        share_ended, tau = agreed[:2]
        self._some_ended = 0 < share_ended < 1
        rates, steps = agreed[2 : 2 + len(rates)], agreed[2 + len(rates) :]
        if tau > 0:
            yield AllReduceMean(learner.params)
            k = self._filter(learner.params, tau, rates)
            if self._moments:
                yield from self._moments.carry(steps, tau, k)
        self._block_steps = 0
        self._updates = learner.updates
        return bool(share_ended == 1.0)

    def _filter(self, mean: Tensor, tau: float, rates: list[float]) -> float:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Returns k, the equivalent minibatches from the mean to the next start point.
        """
        rule, previous_rho = self.rule, self.rho
        warm = self.blocks * self._period < rule.warmup
        eta, zeta = (0.0, 1.0) if warm else (rule.momentum, rule.block_lr)
        self.blocks += 1
        self.rho = eta * previous_rho + zeta * tau
        ahead = self.rho if rule.nesterov else previous_rho
        if eta == 0 and zeta == 1:
            # Not computed as init + (mean - init): that is not the identity on bits.
            torch.sub(mean, self.theta, out=self.delta)
            self.theta.copy_(mean)
            self.init.copy_(mean)
            return 0.0
        held = self._rates.follow(rates, self.delta) if self._rates else []
        self.delta.mul_(eta).add_(mean.sub_(self.init), alpha=zeta)
        self.theta.add_(self.delta)
        lookahead = eta if rule.nesterov else 0.0
        torch.add(self.theta, self.delta, alpha=lookahead, out=self.init)
        mean.copy_(self.init)
        for part, kept in held:
            self.delta[part] = kept
        return max(0.0, eta * ahead + (zeta - 1) * tau)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t, not the look-ahead (but see `diloco`)."""
        yield from ()
        return (self.init if self.rule.evaluates_start else self.theta).clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the block's state, at any step of a block."""
        return {
            "learners": self._size,
            "theta": self.theta.clone(),
            "init": self.init.clone(),
            "delta": self.delta.clone(),
            "rho": self.rho,
            "blocks": self.blocks,
            "block_steps": self._block_steps,
            "updates": self._updates,
            "moments": self._moments.state_dict() if self._moments else {},
            "rates": list(self._rates.last) if self._rates else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned.

        Raises:
            InputError: the number of learners has changed, and with it the default
                momentum and the meaning of `rho`; or what is kept of moments has.
        """
        if state["learners"] != self._size:
            raise InputError(
                f"the block momentum was saved by {state['learners']} learners and "
                f"cannot be used by {self._size}; resume with as many learners, or "
                "remove the experiment's distopt/ folder to reset it"
            )
        for name in ("theta", "init", "delta"):
            getattr(self, name).copy_(state[name])
        self.rho = state["rho"]
        self.blocks = state["blocks"]
        self._block_steps = state["block_steps"]
        self._updates = state["updates"]
        if self._moments:
            self._moments.load_state_dict(state["moments"])
        if self._rates:
            self._rates.last = list(state["rates"])
