"""A fragment of the model: parameters whose blocks end together, and what they need.

The model of most trainings is one fragment. With several (`fragments` of `bmuf`) each
has a global model, block momentum and moments of its own, of its parameters alone, and
none of them knows of the others.
"""

from typing import Any

from torch import Tensor

from espnet_distopt.algorithms.block.compression import (
    CompressedAverage,
    Start,
    average_changes,
)
from espnet_distopt.algorithms.block.delayed import PARAMS, LateAverage
from espnet_distopt.algorithms.block.filter import BlockFilter
from espnet_distopt.algorithms.block.moments import MOMENTS_CHANGED, BlockMoments
from espnet_distopt.algorithms.block.options import BlockConfig, BlockRule
from espnet_distopt.algorithms.block.part import BlockSummary, Part
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


class Fragment:
    """The blocks of some of a learner's parameters, Q elements.

    Attributes:
        filter: the global model of these parameters, and the momentum of their blocks.
        place: their place in the learner's flat buffer.
        params: that part of the buffer (Q,).
        steps: number of attempted steps since the last block's end.

    Args:
        config: the algorithm's options.
        learner: the learner.
        part: the parameters.
        rule: the rule for all workers.
        ranks: the learners that average blocks; None means all. One learner has no one
            to send changes to.
    """

    def __init__(
        self,
        config: BlockConfig,
        learner: Learner,
        part: Part,
        rule: BlockRule,
        ranks: Ranks,
    ) -> None:
        several = ranks is None
        self.place, self.params = part.place, part.params
        self._ranks = ranks
        self._rounds = rounds = config.exchange == "bfloat16" and several
        self._moments = None
        if rule.moments != "local":
            changes_of = config.period if rounds else None
            self._moments = BlockMoments(rule.moments, part, ranks, changes_of)
        self._compressed = None
        if config.compresses and several:
            self._compressed = CompressedAverage(part, config.keep, config.bits)
        keeps_start = rounds or self._compressed is not None
        self.filter = BlockFilter(rule, part, keeps_start)
        self.steps = 0
        self._updates = learner.updates

    def message(self, learner: Learner, rule: BlockRule, ended: bool) -> Tensor:
        """Return the numbers to average beside the parameters; count a new block.

        Args:
            learner: this learner.
            rule: the rule by which the block ends.
            ended: whether it has no more batches in this epoch.
        """
        updates = learner.updates - self._updates
        self.steps, self._updates = 0, learner.updates
        loaded, decays, steps = False, list[float](), list[float]()
        if moments := self._moments:
            moments.notice_cleared()
            loaded, decays, steps = moments.loaded, moments.decays(), moments.steps()
        own = BlockSummary(
            float(ended),
            float(updates),
            float(loaded),
            self.filter.agreement(self.params, rule) if updates else 0.0,
            self.filter.rates.of_block() if self.filter.rates else [],
            decays,
            steps,
        )
        return own.message(self.params.device)

    def read(self, mean: Tensor) -> BlockSummary:
        """Return what all learners know of the block, from the mean of the numbers."""
        groups = len(self.filter.rates.last) if self.filter.rates else 0
        counted = self._moments.counted if self._moments else 0
        return BlockSummary.read(mean, groups, counted)

    def average(self) -> Program:
        """Overwrite the parameters by their mean, or by what was sent of it."""
        start = self.filter.block_start
        if self._compressed:
            yield from self._compressed.average(self.params, start)
        elif self._rounds:
            yield from average_changes(self.params, start, self._ranks)
        else:
            yield AllReduceMean(self.params, self._ranks)

    def end_block(self, rule: BlockRule, summary: BlockSummary) -> Program:
        """Filter the parameters' mean, and end the block of the moments.

        Args:
            rule: the rule for the workers that have taken part in the mean.
            summary: what they know of the block.
        """
        k = self.filter.end_block(self.params, rule, summary)
        if self._moments:
            yield from self._moments.end_block(summary, k, rule.averaged_batches)

    def begin_late(self, late: LateAverage, message: Tensor, updates: int) -> Program:
        """Begin the average of a block, which `end_late` takes.

        Args:
            late: where it is kept.
            message: the numbers of `message`.
            updates: number of updates that the optimizer has made.
        """
        tensors = {PARAMS: self.params}
        averaged = [PARAMS]
        if self._moments:
            flats = self._moments.begin_late()
            tensors |= flats
            averaged += flats if self._moments.averaged else ()
        yield from late.begin(message, tensors, averaged, self.starts(), updates)

    def starts(self) -> dict[str, Start]:
        """Return the starts since which a late average sends changes, with names."""
        if not self._rounds:
            return {}
        moments = self._moments.starts() if self._moments else {}
        return {PARAMS: self.filter.block_start, **moments}

    def end_late(
        self, late: LateAverage, rule: BlockRule, summary: BlockSummary, updates: int
    ) -> None:
        """Take the average of the last block and filter it.

        Args:
            late: where it is kept.
            rule: the rule for the workers that took part.
            summary: what they know of the block.
            updates: number of updates that the optimizer has made.
        """
        k = 0.0
        if summary.tau > 0:
            snapshot, mean = late.pair(PARAMS)
            k = self.filter.end_block(mean, rule, summary)
            late.replace(self.params, snapshot, mean, updates)
        if self._moments:
            since, batches = updates - late.updates, rule.averaged_batches
            self._moments.end_late(late, summary, k, since, batches)

    def join(self, learner: Learner) -> None:
        """Count the updates of a learner that has joined from now on."""
        self._updates = learner.updates

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the block, at any of its steps."""
        return {
            **self.filter.state_dict(),
            "steps": self.steps,
            "updates": self._updates,
            "moments": self._moments.state_dict() if self._moments else {},
            "compressed": self._compressed.state_dict() if self._compressed else None,
        }

    def load_state_dict(self, state: dict[str, Any], within: bool) -> None:
        """Restore what `state_dict` has returned.

        Args:
            state: the state.
            within: whether it was saved within a block.

        Raises:
            InputError: what the block has begun with is needed now, and is not in the
                state; or the option `moments` has changed.
        """
        if state["moments"] and not self._moments:
            raise InputError(MOMENTS_CHANGED)
        self.filter.load_state_dict(state, self.params, within)
        self.steps, self._updates = state["steps"], state["updates"]
        if self._moments:
            self._moments.load_state_dict(state["moments"])
        if self._compressed:
            self._compressed.load_state_dict(state["compressed"])
