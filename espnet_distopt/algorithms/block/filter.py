"""The filter of block updates: how the mean of a block becomes the next start point.

The equations and their symbols are those of `bmuf`, with one more:

    rho_n = eta rho_{n-1} + zeta tau_n

minibatches are equivalent to Delta_n, where tau_n is the length of block n.

The start point theta_init is computed from theta and Delta when it is needed: the live
parameters have moved on, and the look-ahead must not count twice.
"""

import math
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.options import BlockRule
from espnet_distopt.algorithms.block.part import NO_LEAD, BlockSummary, Lead, Part
from espnet_distopt.errors import InputError

HORIZON = 1000.0
"""The number of updates in which a filter sets in that has no `warmup`: the memory of
Adam's second moment, 1 / (1 - b2), with its default b2. So the filter grows as the
moment does whose estimate the steps depend on."""

SUMMED = 2**17
"""The elements of a vector whose products the processor sums at once, in float32."""


def inner_product(update: Tensor, delta: Tensor) -> float:
    """Return the inner product of two vectors (P,), summed in float64 by pieces."""
    size = SUMMED if update.device.type == "cpu" else max(1, len(update))
    total = 0.0
    parts = zip(torch.split(update, size), torch.split(delta, size), strict=True)
    for own, before in parts:
        total += float(torch.dot(own, before))
    return total


class LearningRates:
    """The learning rates of the parameter groups, which SlowMo's block update follows.

    SlowMo's buffer u does not depend on the learning rate. So Delta_{n-1} is multiplied
    by lr_n / lr_{n-1} before use, for each parameter group on its own. The paper has
    one lr_n in all steps of a block. If a schedule changes it within the block, lr_n is
    here the mean over the steps that the optimizer has taken in it, and over the
    learners: the one rate with which the same gradients would have led as far. The rate
    at the block's end, where a cycle of a schedule comes near 0, would make a huge u_n
    of what larger rates have done before.

    If lr_n is 0, u_n is not defined, because it is divided by lr_n: u is then kept as
    it is, and the next block of this group starts at x_0 + alpha (mean - x_0), which is
    x_0.

    Attributes:
        last: for each group, its rate in the last block where that was not 0; 0 before
            any such block.
    """

    def __init__(self, part: Part) -> None:
        self._optimizer = part.optimizer
        self._parts = []
        for group in range(len(self._optimizer.param_groups)):
            slots = [slot for slot in part.slots if slot.group == group]
            bounds = (slots[0].start, slots[-1].stop) if slots else (0, 0)
            self._parts.append(slice(*bounds))
        self.last = [0.0] * len(self._parts)
        self._begin()
        part.updated.append(self._count)

    def _begin(self) -> None:
        self._counted, self._means = 0, [0.0] * len(self._parts)

    def _present(self) -> list[Any]:
        # Groups that were added since the session began hold frozen parameters alone.
        groups = self._optimizer.param_groups[: len(self._parts)]
        return [group["lr"] for group in groups]

    def _count(self) -> None:
        """Count the rates of an update.

        A mean that is computed so is exact while the rate is constant. A rate that is a
        tensor on a GPU is not waited for.
        """
        self._counted += 1
        self._means = [
            mean + (rate - mean) / self._counted
            for mean, rate in zip(self._means, self._present(), strict=True)
        ]

    def of_block(self) -> list[float]:
        """Return each group's rate in the block, for the learners to average.

        It is the mean over the updates since the last call, or the present rate if
        there was none.
        """
        rates = self._means if self._counted else self._present()
        self._begin()
        return [float(rate) for rate in rates]

    def follow(self, rates: list[float], update: Tensor) -> list[tuple[slice, Tensor]]:
        """Multiply each group's part of `update` (P,) by its rate / its last rate.

        If a group's rate is 0, its part is set aside: it becomes zeros, and its former
        values are returned together with its slice.
        """
        held = []
        for group, (part, rate) in enumerate(zip(self._parts, rates, strict=True)):
            if rate == 0:
                held.append((part, update[part].clone()))
                update[part] = 0
                continue
            if self.last[group] != 0:
                update[part].mul_(rate / self.last[group])
            self.last[group] = rate
        return held

    def state_dict(self) -> dict[str, Any]:
        """Return the rates of the last block and of this one."""
        means = [float(mean) for mean in self._means]
        return {"last": list(self.last), "means": means, "counted": self._counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        self.last, self._means = list(state["last"]), list(state["means"])
        self._counted = state["counted"]


class BlockFilter:
    """The global model, and the momentum of its blocks.

    Without `warmup` the momentum sets in by itself. Block n ends with

        eta_n = w_n eta ,  zeta_n = 1 + w_n (zeta - 1) ,  w_n = 1 - exp(-a_n / HORIZON)

    where a_n is `agreeing`. A block that moves the model against the filtered update
    before it, by (mean_i theta_i - theta_init) . Delta_{n-1} <= 0, is a plain average
    as the first block is, and begins Delta and rho anew.

    Attributes:
        theta: the global model (P,); (0,) if the rule takes the mean as it is, and
            nobody asks for the start.
        delta: the filtered block update Delta_n (P,); (0,) if the rule takes the mean
            as it is.
        lookahead: factor of `delta` at the block's start, theta + lookahead delta.
        rho: number of minibatches equivalent to `delta`.
        taken: number of steps in the blocks that have ended, each the mean over the
            learners of their updates.
        agreeing: number of updates in the blocks since one has last moved the model
            against the filtered update before it.
        rates: the learning rates that the filtered update follows; None for none.

    Args:
        rule: the rule for all workers. Fewer of them may need no filter, but more may
            join them, so that this one decides whether there is a global model.
        part: the parameters, at the beginning.
        keeps_start: whether `block_start` is asked for.
    """

    def __init__(self, rule: BlockRule, part: Part, keeps_start: bool = False) -> None:
        params = part.params
        self._filters = rule.filters
        self._keeps = rule.filters or keeps_start
        self.rates = LearningRates(part) if rule.follows_lr else None
        self.theta = (params if self._keeps else params[:0]).detach().clone()
        self.delta = torch.zeros_like(params if self._filters else params[:0])
        self.lookahead = self.rho = self.taken = self.agreeing = 0.0

    def start(self, params: Tensor) -> None:
        """Take `params` (P,) as the global model, from which the block starts."""
        if self._keeps:
            self.theta.copy_(params)

    def agreement(self, params: Tensor, rule: BlockRule) -> float:
        """Return the product of this learner's update and Delta; 0 if nobody asks.

        The mean of the learners' products is that of their mean update; so the average
        of the message tells it to all of them, with the same bits.

        Args:
            params: the parameters (P,) at the block's end.
            rule: the rule by which it ends.
        """
        if not self._filters or rule.warmup is not None:
            return 0.0
        return inner_product(params - self.block_start(), self.delta)

    def block_start(self) -> Tensor:
        """Return where the block has started (P,); it must not be overwritten."""
        if not self._filters:
            return self.theta
        return torch.add(self.theta, self.delta, alpha=self.lookahead)

    def end_block(self, mean: Tensor, rule: BlockRule, summary: BlockSummary) -> Lead:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Returns:
            The way from the mean to the start point; none if a learner's moments were
            loaded.
        """
        tau, previous_rho = summary.tau, self.rho
        if rule.warmup is None:
            self.agreeing = self.agreeing + tau if summary.agreement > 0 else 0.0
        eta, zeta = self._factors(rule)
        self.taken += tau
        self.rho = eta * previous_rho + zeta * tau
        held = self.rates.follow(list(summary.rates), self.delta) if self.rates else []
        if eta == 0 and zeta == 1:
            self._take(mean)
            return NO_LEAD
        change = mean - self.block_start()
        self.delta.mul_(eta).add_(change, alpha=zeta)
        self.theta.add_(self.delta)
        self.lookahead = eta if rule.nesterov else 0.0
        torch.add(self.theta, self.delta, alpha=self.lookahead, out=mean)
        for place, kept in held:
            self.delta[place] = kept
        ahead = self.rho if rule.nesterov else previous_rho
        if summary.loaded:
            return NO_LEAD
        k = max(0.0, eta * ahead + (zeta - 1) * tau)
        return Lead(k, self._strength(rule))

    def _factors(self, rule: BlockRule) -> tuple[float, float]:
        """Return eta_n and zeta_n."""
        w = self._strength(rule)
        # 1 + (x - 1) is not always x.
        block_lr = rule.block_lr if w == 1 else 1 + w * (rule.block_lr - 1)
        return w * rule.momentum, block_lr

    def _strength(self, rule: BlockRule) -> float:
        """Return w_n, in [0, 1]: how far the filter has set in."""
        if rule.warmup is not None:
            return float(self.taken >= rule.warmup)
        return -math.expm1(-self.agreeing / HORIZON)

    def gain(self, rule: BlockRule) -> float:
        """Return how many times as far as its mean a block goes now."""
        eta, zeta = self._factors(rule)
        return zeta / (1 - eta)

    def _take(self, mean: Tensor) -> None:
        """Take `mean` as it is: init + (mean - init) would have other bits."""
        if self._filters:
            start = self.block_start() if self.lookahead else self.theta
            torch.sub(mean, start, out=self.delta)
        if self._keeps:
            self.theta.copy_(mean)
        self.lookahead = 0.0

    def model(self, params: Tensor, rule: BlockRule, out: Tensor) -> None:
        """Write the model to evaluate to `out` (P,).

        Args:
            params: the live parameters (P,), which may be the global model.
            rule: the rule by which blocks end.
            out: tensor (P,) with any values.
        """
        if not self._filters:
            out.copy_(params)
            return
        ahead = self.lookahead if rule.evaluates_start else 0.0
        torch.add(self.theta, self.delta, alpha=ahead, out=out)

    def state_dict(self) -> dict[str, Any]:
        """Return the global model and the momentum."""
        return {
            "theta": self.theta.clone(),
            "delta": self.delta.clone(),
            "lookahead": self.lookahead,
            "rho": self.rho,
            "taken": self.taken,
            "agreeing": self.agreeing,
            "rates": self.rates.state_dict() if self.rates else None,
        }

    def load_state_dict(
        self, state: dict[str, Any], params: Tensor, within: bool
    ) -> None:
        """Restore what `state_dict` has returned.

        Args:
            state: the state. It may be of a rule that has a global model where this one
                has none, or the other way round.
            params: the live parameters (P,); they become the saved global model if this
                rule takes means as they are.
            within: whether it was saved within a block.

        Raises:
            InputError: the start of the block is needed, and is not in the state; or
                the block has begun with a filter that this rule does not have.
        """
        self.taken, self.agreeing = state["taken"], state["agreeing"]
        self.lookahead = self.rho = 0.0
        if self.rates and state["rates"]:
            self.rates.load_state_dict(state["rates"])
        saved: Tensor = state["theta"]
        had_filter = bool(state["delta"].numel())
        if had_filter and not self._filters:
            if within:
                raise InputError(
                    "the state was saved within a block with block momentum or a "
                    "block_lr, without which the block cannot end as it has begun; "
                    "resume with the same, or from the end of an epoch"
                )
            params.copy_(saved)
        if had_filter and self._filters:
            self.delta.copy_(state["delta"])
            self.lookahead = state["lookahead"]
            self.rho = state["rho"]
        if not self._keeps:
            return
        if saved.numel():
            self.theta.copy_(saved)
        elif within:
            raise InputError(
                "the state was saved within a block with exchange: float32, keep: 1, "
                "momentum: 0 and block_lr: 1, and what the block has begun with is not "
                "known; resume with these, or from the end of an epoch"
            )
        else:
            self.start(params)
