"""Blockwise model-update filtering (BMUF; Chen and Huo, ICASSP 2016) and BMUF-Adam.

Each learner trains on its own for a block of tau steps. Then the learners average their
parameters, filter the change with block momentum, and add it to the global model, from
which the next block starts:

    Delta_n = eta Delta_{n-1} + zeta (mean_i theta_i - theta_init)
    theta_t = theta_{t-1} + Delta_n
    CBM: theta_init = theta_t        NBM: theta_init = theta_t + eta Delta_n

    paper                     here
    tau                       `period` (or fewer steps, at the end of an epoch)
    eta, 1 - 1/N by default   `momentum`
    zeta                      `block_lr`
    theta_t, Delta_n          `theta`, `delta`
    theta_init                computed from these when it is needed: the live `params`
                              have moved on, and the look-ahead must not count twice
    rho_n                     `rho`: minibatches equivalent to Delta_n,
                              rho_n = eta rho_{n-1} + zeta tau_n

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020) carries Adam's moments along to theta_init,
see `moments`. With other rules for the end of a block the algorithm is Local SGD,
SlowMo or DiLoCo: see `local_sgd`, `slowmo` and `diloco`. With a `delay` the next
block's steps hide the communication, see `delayed`.
Cost for n bytes of parameters: 2n(N-1)/N a block, 6n(N-1)/N with Adam's moments.
Memory: 2P elements, or none without momentum and block learning rate; 2P more when
Adam's moments are extrapolated.

The training survives the death of any learner: the others repeat the average at the end
of the block among themselves, see `Bmuf.change_members`.
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
from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BmufConfig(BlockConfig):
    """Options of `bmuf` and `bmuf_adam`.

    Attributes:
        period: number of steps in a block (tau).
        delay: steps of the next block that hide the average, see `delayed`.
        momentum: block momentum (eta); None means 1 - 1/N.
        block_lr: block learning rate (zeta).
        warmup: number of steps before momentum sets in; until then blocks are plain
            averages. A model that starts from random parameters makes large steps at
            first, which momentum would amplify.
        nesterov: start blocks at the look-ahead (NBM) rather than at the model (CBM).
        moments: treatment of the optimizer's moments at the end of a block:
            extrapolate (BMUF-Adam), average, local (left alone) or reset.
    """

    momentum: float | None = None
    block_lr: float = 1.0
    warmup: int = 0
    nesterov: bool = True
    moments: Literal[Fate, "local"] = "average"

    def rule(self, size: int) -> BlockRule:
        """Return the rule of block momentum for `size` learners."""
        return BlockRule(
            momentum=1 - 1 / size if self.momentum is None else self.momentum,
            block_lr=self.block_lr,
            nesterov=self.nesterov,
            warmup=self.warmup,
            moments=self.moments,
        )


@dataclass(frozen=True, kw_only=True)
class BmufAdamConfig(BmufConfig):
    """Options of `bmuf_adam`: those of `bmuf`, but moments are extrapolated."""

    moments: Literal[Fate, "local"] = "extrapolate"


class Bmuf(Algorithm):
    """Block momentum over local steps; moments kept, averaged, reset or extrapolated.

    Attributes:
        rule: the rule by which a block ends.
        theta: the global model (P,); (0,) if the rule takes the mean as it is.
        delta: the filtered block update Delta_n (P,); (0,) likewise.
        lookahead: factor of `delta` at the block's start, theta + lookahead delta.
        rho: number of minibatches equivalent to `delta`.
        blocks: number of blocks that have ended.
    """

    survives = True

    def __init__(self, config: BlockConfig, learner: Learner) -> None:
        self._config = config
        rule = config.rule(learner.size)
        self.rule = config.rule(len(learner.members.ranks))
        self.averaged_batches = rule.averaged_batches
        # Fewer learners may need no filter, but more may join them.
        self._filters = rule.filters
        kept = learner.params if rule.filters else learner.params[:0]
        self.theta = kept.detach().clone()
        self.delta = torch.zeros_like(self.theta)
        self.lookahead = 0.0
        self.rho = 0.0
        self.blocks = 0
        self._period = config.period
        # One learner alone has no average to wait for.
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
        """Take over learner 0's parameters as the global model."""
        yield from super().start(learner)
        if self._filters:
            self.theta.copy_(learner.params)

    def change_members(self, learner: Learner, members: Members) -> None:
        """Take the rule for the learners that have taken part in the block's end.

        The default momentum is 1 - 1/N of these N learners. Delta and rho stay as they
        are: rho says for how many minibatches Delta stands, whoever has made them.
        """
        super().change_members(learner, members)
        self.rule = self._config.rule(len(members.ranks))

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of a block, average and filter."""
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
        """End the last, shorter block; join in those of learners with more data."""
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
        """Return the step that takes this block's average: others may wait there."""
        return learner.steps + self._period - self._block_steps + self._delay

    def can_pause(self, learner: Learner) -> bool:
        """Return False while learners with less data have ended their epoch already."""
        return not self._some_ended

    def pause(self, learner: Learner) -> Program:
        """Wait for the average in flight; the resumed run begins it once more."""
        if self._late.under_way:
            yield from self._late.wait()

    def _end_block(self, learner: Learner, ended: bool) -> Generator[Effect, Any, bool]:
        """Average and filter; return whether every learner has ended its epoch."""
        message = self._message(learner, ended)
        everybody_ended, tau, rates, steps = self._read((yield AllReduceMean(message)))
        if tau > 0:
            yield AllReduceMean(learner.params)
            k = self._filter(learner.params, tau, rates)
            if self._moments:
                yield from self._moments.end_block(steps, tau, k)
        return everybody_ended

    def _begin_late(self, learner: Learner, ended: bool) -> Program:
        """Begin the average of a block, which `_end_late` takes."""
        message = self._message(learner, ended)
        flats = self._moments.begin_late() if self._moments else {}
        yield from self._late.begin(message, learner.params, flats, learner.updates)

    def _end_late(self, learner: Learner) -> Generator[Effect, Any, bool]:
        """Take the average of the last block and filter it; return as `_end_block`."""
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
        """Return the numbers to average beside the parameters; count a new block."""
        steps = self._moments.steps() if self._moments else []
        rates = self._rates.current() if self._rates else []
        loaded = float(bool(self._moments and self._moments.loaded))
        updates = float(learner.updates - self._updates)
        self._block_steps = 0
        self._updates = learner.updates
        message = [float(ended), updates, loaded, *rates, *steps]
        return torch.tensor(message, dtype=torch.float64, device=learner.params.device)

    def _read(self, mean: Tensor) -> tuple[bool, float, list[float], list[float]]:
        """Return whether all have ended, and mean updates, rates and step counts."""
        share_ended, tau, share_loaded, *others = mean.tolist()
        self._some_loaded = share_loaded > 0
        self._some_ended = 0 < share_ended < 1
        rates = len(self._rates.last) if self._rates else 0
        return share_ended == 1.0, tau, others[:rates], others[rates:]

    def _filter(self, mean: Tensor, tau: float, rates: list[float]) -> float:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Returns k, the number of minibatches equivalent to the way from the mean to the
        start point; 0 if a learner's moments were loaded.
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
        """Take `mean` (P,) as it is: init + (mean - init) would have other bits."""
        self.lookahead = 0.0
        if self._filters:
            torch.sub(mean, self.theta, out=self.delta)
            self.theta.copy_(mean)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t; with `diloco` it is the look-ahead."""
        yield from ()
        if not self._filters:
            return learner.params.clone()
        ahead = self.lookahead if self.rule.evaluates_start else 0.0
        return torch.add(self.theta, self.delta, alpha=ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the block, at any of its steps."""
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

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Take over the block of the others, who have just ended one."""
        super().join(learner, state)
        self._updates = learner.updates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: the number of learners has changed, and with it the default
                momentum and the meaning of `rho`; or the option `moments` has.
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
