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

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020): theta_init lies k equivalent minibatches
ahead of the mean, but averaged moments do not. With E[g], E[g*g] constant in a block,
a moment m with decay b is carried along by

    m_init = mbar + kappa (mbar - m_0),    kappa = b^tau (1 - b^k) / (1 - b^tau)

and Adam's step count by k. eta = 0 with zeta = 1 is plain model averaging (Local SGD).
Cost for n bytes of parameters: 2n(N-1)/N a block, 6n(N-1)/N with Adam's moments.
Memory: 3P elements, 2P more when Adam's moments are extrapolated.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.effects import AllReduceMean, Effect, Program
from espnet_distopt.errors import InputError
from espnet_distopt.learner import Learner
from espnet_distopt.moments import Moments


@dataclass(frozen=True, kw_only=True)
class BmufConfig:
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

    period: int = 8
    momentum: float | None = None
    block_lr: float = 1.0
    warmup: int = 0
    nesterov: bool = True
    moments: Literal["extrapolate", "average", "local", "reset"] = "average"

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period must be >= 1, not {self.period}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum}")
        if self.warmup < 0:
            raise InputError(f"warmup must be >= 0, not {self.warmup}")
        if not 0 < self.block_lr < math.inf:
            raise InputError(f"block_lr must be > 0 and finite, not {self.block_lr}")


@dataclass(frozen=True, kw_only=True)
class BmufAdamConfig(BmufConfig):
    """Options of `bmuf_adam`: those of `bmuf`, with moments extrapolated."""

    moments: Literal["extrapolate", "average", "local", "reset"] = "extrapolate"


def extrapolation_gain(decay: float, tau: float, k: float) -> float:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau), computed without cancellation.

    Tends to k / tau as the decay tends to 1: the gain that the parameters get.
    """
    if tau <= 0 or k <= 0 or decay <= 0:
        return 0.0
    if decay == 1:
        return k / tau
    log = math.log(decay)
    return math.exp(tau * log) * math.expm1(k * log) / math.expm1(tau * log)


class Bmuf(Algorithm):
    """Block momentum over local steps; moments kept, averaged, reset or extrapolated.

    Attributes:
        theta: (P,) the global model, the one to evaluate.
        init: (P,) where the current block started.
        delta: (P,) the filtered block update.
        rho: minibatches equivalent to `delta`.
        blocks: how many have ended.
    """

    def __init__(self, config: BmufConfig, learner: Learner) -> None:
        self.config = config
        self.eta = 1 - 1 / learner.size if config.momentum is None else config.momentum
        self.theta = learner.params.detach().clone()
        self.init = self.theta.clone()
        self.delta = torch.zeros_like(self.theta)
        self.rho = 0.0
        self.blocks = 0
        self._block_steps = 0
        self._updates = learner.updates
        self._size = learner.size
        self._tensors = len(learner.slots)
        self._moments = None if config.moments == "local" else Moments(learner)
        self._steps = self._moments.steps() if self._moments else []
        self._moments_init: dict[str, Tensor] = {}
        if self._moments and config.moments == "extrapolate":
            if learner.optimizer.state:
                self._moments.adopt()
            self._remember_moments()

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters."""
        yield from super().start(learner)
        self.theta.copy_(learner.params)
        self.init.copy_(learner.params)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of the block, synchronise."""
        self._block_steps += 1
        if self._block_steps >= self.config.period:
            yield from self._end_block(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter block; join the blocks of learners with more data."""
        while True:
            everybody_ended = yield from self._end_block(learner, ended=True)
            if everybody_ended:
                return

    def _end_block(self, learner: Learner, ended: bool) -> Generator[Effect, Any, bool]:
        """Synchronise; returns whether every learner has come to its epoch's end."""
        local = self._moments.steps() if self._moments else []
        message = [float(ended), float(learner.updates - self._updates), *local]
        agreed: Tensor = yield AllReduceMean(
            torch.tensor(message, dtype=torch.float64, device=learner.params.device)
        )
        share_ended, tau, *steps = agreed.tolist()
        if tau > 0:
            yield AllReduceMean(learner.params)
            k = self._filter(learner.params, tau)
            yield from self._carry_moments(steps, tau, k)
        self._block_steps = 0
        self._updates = learner.updates
        return bool(share_ended == 1.0)

    def _filter(self, mean: Tensor, tau: float) -> float:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Returns k, the equivalent minibatches from the mean to the next start point.
        """
        warm = self.blocks * self.config.period < self.config.warmup
        eta = 0.0 if warm else self.eta
        zeta, previous_rho = self.config.block_lr, self.rho
        self.blocks += 1
        self.rho = eta * previous_rho + zeta * tau
        ahead = self.rho if self.config.nesterov else previous_rho
        if eta == 0 and zeta == 1:
            # Not computed as init + (mean - init): that is not the identity on bits.
            torch.sub(mean, self.theta, out=self.delta)
            self.theta.copy_(mean)
            self.init.copy_(mean)
            return 0.0
        self.delta.mul_(eta).add_(mean.sub_(self.init), alpha=zeta)
        self.theta.add_(self.delta)
        lookahead = eta if self.config.nesterov else 0.0
        torch.add(self.theta, self.delta, alpha=lookahead, out=self.init)
        mean.copy_(self.init)
        return max(0.0, eta * ahead + (zeta - 1) * tau)

    def _carry_moments(self, steps: list[float], tau: float, k: float) -> Program:
        """Average, extrapolate or reset the moments; `steps` are mean step counts."""
        moments = self._moments
        if moments is None:
            return
        moments.adopt()
        if self.config.moments == "reset":
            for flat in moments.flat.values():
                flat.zero_()
            moments.set_steps([0.0] * len(steps))
            return
        for flat in moments.flat.values():
            yield AllReduceMean(flat)
        if self.config.moments == "extrapolate":
            before = self._steps or [0.0] * len(steps)
            taus = [now - then for now, then in zip(steps, before, strict=True)]
            ahead = k / tau
            self._extrapolate(moments, taus or [tau] * self._tensors, ahead)
            steps = [s + ahead * t for s, t in zip(steps, taus, strict=True)]
            self._remember_moments()
        moments.set_steps(steps)
        self._steps = moments.steps()

    def _extrapolate(self, moments: Moments, taus: list[float], ahead: float) -> None:
        """Carry moments over `ahead` times as many steps as each was updated in.

        A parameter that was not reached in every step of a block has its own tau.
        """
        for name, flat in moments.flat.items():
            for part, group, tau in moments.runs(taus):
                decay = moments.decays[name][group]
                k = ahead * tau
                gain = extrapolation_gain(decay, tau, k)
                if gain == 0:
                    continue
                start, current = self._moments_init[name][part], flat[part]
                # E[g*g] >= 0 bounds the second moment from below; exact arithmetic
                # respects the bound, rounding (and gradients that vanish) do not.
                floor = start * decay ** (tau + k) if name == "exp_avg_sq" else None
                current.mul_(1 + gain).sub_(start, alpha=gain)
                if floor is not None:
                    torch.maximum(current, floor, out=current)

    def _remember_moments(self) -> None:
        assert self._moments is not None
        for name, flat in self._moments.flat.items():
            if name not in self._moments_init:
                self._moments_init[name] = torch.empty_like(flat)
            self._moments_init[name].copy_(flat)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t, not the look-ahead."""
        yield from ()
        return self.theta.clone()

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
            "steps": list(self._steps),
            "moments": {name: t.clone() for name, t in self._moments_init.items()},
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
        if set(state["moments"]) != set(self._moments_init):
            raise InputError(
                "the state was saved with other `moments` or another optimizer; resume "
                "with the same, or remove the experiment's distopt/ folder to reset it"
            )
        for name in ("theta", "init", "delta"):
            getattr(self, name).copy_(state[name])
        self.rho = state["rho"]
        self.blocks = state["blocks"]
        self._block_steps = state["block_steps"]
        self._updates = state["updates"]
        self._steps = list(state["steps"])
        for name, tensor in state["moments"].items():
            self._moments_init[name].copy_(tensor)
