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
    theta_t, Delta_n          `theta`, `delta`
    theta_init                computed from these where it is needed, as `params` have
                              moved on: the look-ahead must never count twice
    rho_n                     `rho`: minibatches equivalent to Delta_n,
                              rho_n = eta rho_{n-1} + zeta tau_n

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020) carries Adam's moments along to theta_init,
see `block_moments`. Other rules for the end of a block make this algorithm Local SGD,
SlowMo and DiLoCo: see `local_sgd`, `slowmo` and `diloco`.
Cost for n bytes of parameters: 2n(N-1)/N a block, 6n(N-1)/N with Adam's moments.
Memory: 2P elements, none without momentum and block learning rate; 2P more when Adam's
moments are extrapolated. With a `delay` the next block's steps hide the communication,
see `block_late`.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.learning_rates import LearningRates
from espnet_distopt.algorithms.block.moments import BlockMoments, Fate
from espnet_distopt.algorithms.block.rule import BlockConfig, BlockRule
from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Effect, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BmufConfig(BlockConfig):
    """Options of `bmuf` and `bmuf_adam`.

    Attributes:
        period: steps in a block (tau).
        delay: steps of the next block that hide the average, see `block_late`.
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
        theta: (P,) the global model; (0,) if the rule is to take the mean as it is.
        delta: (P,) the filtered block update; (0,) likewise.
        lookahead: the current block started at theta + lookahead delta.
        rho: minibatches equivalent to `delta`.
        blocks: how many have ended.
    """

    def __init__(self, config: BlockConfig, learner: Learner) -> None:
        self.rule = rule = config.rule(learner.size)
        kept = learner.params if rule.filters else learner.params[:0]
        self.theta = kept.detach().clone()
        self.delta = torch.zeros_like(self.theta)
        self.lookahead = 0.0
        self.rho = 0.0
        self.blocks = 0
        self._period = config.period
        # one learner alone has nothing to wait for
        self._delay = config.delay if learner.size > 1 else 0
        self._block_steps = 0
        self._some_ended = self._some_loaded = False
        self._updates = learner.updates
        self._size = learner.size
        self._moments = (
            None if rule.moments == "local" else BlockMoments(rule.moments, learner)
        )
        self._rates = LearningRates(learner) if rule.follows_lr else None
        self._late = LateAverage(bool(self._moments and self._moments.averaged))

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters."""
        yield from super().start(learner)
        if self.rule.filters:
            self.theta.copy_(learner.params)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of the block, synchronise."""
        self._block_steps += 1
        if self._late.under_way and self._block_steps >= self._delay:
            yield from self._end_late(learner)
        if self._block_steps < self._period:
            return
        if self._delay:
            yield from self._begin_late(learner, ended=False)
        else:
            yield from self._end_block(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter block; join the blocks of learners with more data."""
        if self._late.under_way:
            yield from self._end_late(learner)
        while True:
            if self._delay:
                yield from self._begin_late(learner, ended=True)
                everybody_ended = yield from self._end_late(learner)
            else:
                everybody_ended = yield from self._end_block(learner, ended=True)
            if everybody_ended:
                return

    def next_stop(self, learner: Learner) -> int:
        """Stop where a block's average is in place: others may wait there already."""
        return learner.steps + self._period - self._block_steps + self._delay

    def can_pause(self, learner: Learner) -> bool:
        """Not while others, who have less data, wait for the end of the epoch."""
        return not self._some_ended

    def pause(self, learner: Learner) -> Program:
        """Wait for the average in flight, which will begin anew."""
        if self._late.under_way:
            yield from self._late.wait()

    def _end_block(self, learner: Learner, ended: bool) -> Generator[Effect, Any, bool]:
        """Synchronise; returns whether every learner has come to its epoch's end."""
        message = self._message(learner, ended)
        everybody_ended, tau, rates, steps = self._read((yield AllReduceMean(message)))
        if tau > 0:
            yield AllReduceMean(learner.params)
            k = self._filter(learner.params, tau, rates)
            if self._moments:
                yield from self._moments.end_block(steps, tau, k)
        return everybody_ended

    def _begin_late(self, learner: Learner, ended: bool) -> Program:
        """Begin to synchronise."""
        message = self._message(learner, ended)
        flats = self._moments.begin_late() if self._moments else {}
        yield from self._late.begin(message, learner.params, flats, learner.updates)

    def _end_late(self, learner: Learner) -> Generator[Effect, Any, bool]:
        """Synchronise with what others had when this learner's average began."""
        late = self._late
        yield from late.wait()
        everybody_ended, tau, rates, steps = self._read(late.averages[0])
        if tau > 0:
            start = late.averages[1]
            k = self._filter(start, tau, rates)
            late.replace(learner.params, start)
            if self._moments:
                then = late.message[len(late.message) - len(steps) :].tolist()
                since = learner.updates - late.updates
                self._moments.end_late(late, then, steps, tau, k, since)
        late.taken()
        return everybody_ended

    def _message(self, learner: Learner, ended: bool) -> Tensor:
        """Return what learners average beside their parameters, and begin a block."""
        steps = self._moments.steps() if self._moments else []
        rates = self._rates.current() if self._rates else []
        loaded = float(bool(self._moments and self._moments.loaded))
        updates = float(learner.updates - self._updates)
        self._block_steps = 0
        self._updates = learner.updates
        message = [float(ended), updates, loaded, *rates, *steps]
        return torch.tensor(message, dtype=torch.float64, device=learner.params.device)

    def _read(self, mean: Tensor) -> tuple[bool, float, list[float], list[float]]:
        """Return whether all have ended, mean updates, rates and step counts."""
        share_ended, tau, share_loaded, *others = mean.tolist()
        self._some_loaded = share_loaded > 0
        self._some_ended = 0 < share_ended < 1
        rates = len(self._rates.last) if self._rates else 0
        return share_ended == 1.0, tau, others[:rates], others[rates:]

    def _filter(self, mean: Tensor, tau: float, rates: list[float]) -> float:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Returns k, the equivalent minibatches from the mean to the next start point; 0
        where moments were loaded.
        """
        rule, previous_rho = self.rule, self.rho
        warm = self.blocks * self._period < rule.warmup
        eta, zeta = (0.0, 1.0) if warm else (rule.momentum, rule.block_lr)
        self.blocks += 1
        self.rho = eta * previous_rho + zeta * tau
        ahead = self.rho if rule.nesterov else previous_rho
        if eta == 0 and zeta == 1:
            self._take(mean)
            return 0.0
        held = self._rates.follow(rates, self.delta) if self._rates else []
        before, self.lookahead = self.lookahead, eta if rule.nesterov else 0.0
        for m, theta, delta in cache_blocks(mean, self.theta, self.delta):
            start = torch.add(theta, delta, alpha=before)
            delta.mul_(eta).add_(m.sub_(start), alpha=zeta)
            theta.add_(delta)
            torch.add(theta, delta, alpha=self.lookahead, out=m)
        for part, kept in held:
            self.delta[part] = kept
        return 0.0 if self._some_loaded else max(0.0, eta * ahead + (zeta - 1) * tau)

    def _take(self, mean: Tensor) -> None:
        """Take `mean` (P,) as it is: init + (mean - init) is not the same bits."""
        self.lookahead = 0.0
        if self.rule.filters:
            torch.sub(mean, self.theta, out=self.delta)
            self.theta.copy_(mean)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t, not the look-ahead (but see `diloco`)."""
        yield from ()
        if not self.rule.filters:
            return learner.params.clone()
        ahead = self.lookahead if self.rule.evaluates_start else 0.0
        return torch.add(self.theta, self.delta, alpha=ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return the block's state, at any step of a block."""
        return {
            "learners": self._size,
            "theta": self.theta.clone(),
            "delta": self.delta.clone(),
            "lookahead": self.lookahead,
            "rho": self.rho,
            "blocks": self.blocks,
            "block_steps": self._block_steps,
            "updates": self._updates,
            "moments": self._moments.state_dict() if self._moments else {},
            "rates": list(self._rates.last) if self._rates else [],
            "late": self._late.state_dict(),
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
        for name in ("theta", "delta"):
            getattr(self, name).copy_(state[name])
        self.lookahead = state["lookahead"]
        self.rho = state["rho"]
        self.blocks = state["blocks"]
        self._block_steps = state["block_steps"]
        self._updates = state["updates"]
        if self._moments:
            self._moments.load_state_dict(state["moments"])
        if self._rates:
            self._rates.last = list(state["rates"])
        self._late.load_state_dict(state.get("late"), self.theta)
