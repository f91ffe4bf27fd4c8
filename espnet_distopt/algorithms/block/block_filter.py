"""The filter of block updates: how the mean of a block becomes the next start point.

The equations and their symbols are those of `bmuf`, with one more:

    rho_n = eta rho_{n-1} + zeta tau_n

minibatches are equivalent to Delta_n, where tau_n is the length of block n.

The start point theta_init is computed from theta and Delta when it is needed: the live
parameters have moved on, and the look-ahead must not count twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.learning_rates import LearningRates
from espnet_distopt.algorithms.block.message import Agreed
from espnet_distopt.algorithms.block.rule import BlockRule
from espnet_distopt.core.cache_blocks import cache_slices, room_for_piece
from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class BlockEnd:
    """The end of a block.

    Attributes:
        k: number of minibatches equivalent to the way from the mean to the next start
            point; 0 if a learner's moments were loaded.
        to_start: a function that returns a piece of the next start point; it takes that
            of the mean, and its place in the parameters. The result may be the mean's
            piece itself; otherwise the next call overwrites it.
    """

    k: float
    to_start: Callable[[Tensor, slice], Tensor]


class BlockFilter:
    """The global model, and the momentum of its blocks.

    Attributes:
        theta: the global model (P,); (0,) if the rule takes the mean as it is, and
            nobody asks for the start.
        delta: the filtered block update Delta_n (P,); (0,) if the rule takes the mean
            as it is.
        lookahead: factor of `delta` at the block's start, theta + lookahead delta.
        rho: number of minibatches equivalent to `delta`.
        taken: number of steps in the blocks that have ended, each the mean over the
            learners of their updates.
        agreeing: the same, since a block has last moved the model against `delta`; it
            is counted where the rule has no `warmup`.

    Args:
        rule: the rule for all workers. Fewer of them may need no filter, but more may
            join them, so that this one decides whether there is a global model.
        params: the parameters at the beginning (P,).
        period: number of steps in a block.
        rates: the learning rates that the filtered update follows; None for none.
        keeps_start: whether `block_start` is asked for.
    """

    def __init__(
        self,
        rule: BlockRule,
        params: Tensor,
        period: int,
        rates: LearningRates | None,
        keeps_start: bool = False,
    ) -> None:
        self._filters = rule.filters
        self._keeps = rule.filters or keeps_start
        self._period = period
        self._rates = rates
        self.theta = (params if self._keeps else params[:0]).detach().clone()
        self.delta = torch.zeros_like(params if self._filters else params[:0])
        self.lookahead = 0.0
        self.rho = 0.0
        self.taken = self.agreeing = 0.0

    def start(self, params: Tensor) -> None:
        """Take `params` (P,) as the global model, from which the block starts."""
        if self._keeps:
            self.theta.copy_(params)

    def agreement(self, params: Tensor, rule: BlockRule) -> float:
        """Return the product of a block's own update and the filtered one before it.

        The mean of the learners' products is that of their mean update; so the average
        of the message tells it to all of them, with the same bits.

        Args:
            params: the parameters (P,) at the block's end.
            rule: the rule by which it ends; 0 is returned if it does not ask.
        """
        if not self._filters or rule.warmup is not None:
            return 0.0
        total = 0.0
        for part, start in self.block_start().pieces():
            total += float(torch.dot(params[part] - start, self.delta[part]))
        return total

    def block_start(self) -> BlockStart:
        """Return where the block has started; valid until it ends."""
        if not self._filters:
            return BlockStart(self.theta)
        return BlockStart(self.theta, self.delta, self.lookahead)

    def end_block(self, mean: Tensor, rule: BlockRule, agreed: Agreed) -> float:
        """Filter the block's update; `mean` (P,) becomes the next start point.

        Args:
            mean: the mean of the workers' parameters.
            rule: the rule for the workers that took part in it.
            agreed: what they know of the block.

        Returns:
            k, the number of minibatches equivalent to the way from the mean to the
            start point; 0 if a learner's moments were loaded.
        """
        with self.ending(rule, agreed) as end:
            for part in cache_slices(mean):
                piece = mean[part]
                start = end.to_start(piece, part)
                if start is not piece:
                    piece.copy_(start)
        return end.k

    @contextmanager
    def ending(self, rule: BlockRule, agreed: Agreed) -> Iterator[BlockEnd]:
        """End a block, whose mean comes in pieces; each comes once, inside.

        Args:
            rule: the rule for the workers that took part in it.
            agreed: what they know of the block.
        """
        tau, previous_rho = agreed.tau, self.rho
        if rule.warmup is None:
            self.agreeing = self.agreeing + tau if agreed.agreement > 0 else 0.0
            eta, zeta = rule.at(self.agreeing)
        elif self.taken < rule.warmup:
            eta, zeta = 0.0, 1.0
        else:
            eta, zeta = rule.momentum, rule.block_lr
        self.taken += tau
        self.rho = eta * previous_rho + zeta * tau
        ahead = self.rho if rule.nesterov else previous_rho
        if eta == 0 and zeta == 1:
            yield BlockEnd(0.0, self._take)
            self.lookahead = 0.0
            return
        held = self._rates.follow(agreed.rates, self.delta) if self._rates else []
        before, self.lookahead = self.lookahead, eta if rule.nesterov else 0.0

        room = room_for_piece(self.theta)

        def to_start(mean: Tensor, part: slice) -> Tensor:
            theta, delta, start = self.theta[part], self.delta[part], room[: len(mean)]
            torch.add(theta, delta, alpha=before, out=start)
            change = torch.sub(mean, start, out=start)
            delta.mul_(eta).add_(change, alpha=zeta)
            theta.add_(delta)
            return torch.add(theta, delta, alpha=self.lookahead, out=start)

        k = 0.0 if agreed.loaded else max(0.0, eta * ahead + (zeta - 1) * tau)
        yield BlockEnd(k, to_start)
        for part, kept in held:
            self.delta[part] = kept

    def _take(self, mean: Tensor, part: slice) -> Tensor:
        """Take `mean` as it is: init + (mean - init) would have other bits."""
        if self._filters:
            start, delta = self.theta[part], self.delta[part]
            if self.lookahead:
                start = torch.add(start, delta, alpha=self.lookahead)
            torch.sub(mean, start, out=delta)
        if self._keeps:
            self.theta[part].copy_(mean)
        return mean

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
        }

    def load_state_dict(
        self, state: dict[str, Any], params: Tensor, within: bool
    ) -> None:
        """Restore what `state_dict` has returned, among other entries of `state`.

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
        older = state.get("blocks", 0) * self._period  # They have counted blocks.
        self.taken = state.get("taken", older)
        self.agreeing = state.get("agreeing", 0.0)
        self.lookahead = self.rho = 0.0
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
