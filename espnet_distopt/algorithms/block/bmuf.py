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
    theta_t, Delta_n          `filter.theta`, `filter.delta`
    theta_init                computed from these when it is needed
    rho_n                     `filter.rho`: minibatches equivalent to Delta_n

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020) carries Adam's moments along to theta_init,
see `moments`. With other rules for the end of a block the algorithm is Local SGD,
SlowMo or DiLoCo, see `options`. With a `delay` the next block's steps hide the
communication, see `delayed`.

With F `fragments` the parameters are cut into as many parts, which take turns: every
period / F steps the block of one of them ends, so that each has blocks of tau steps. In
each of these turns a learner sends, and works on, an F-th of what it does for a whole
model, and of the copies that a delay needs there is an F-th as well. The equations hold
for each fragment by itself (Streaming DiLoCo; Douillard et al. 2025, arXiv 2501.18512).
At the end of an epoch the blocks of all fragments end.

A worker of the paper, of which there are N, is a learner; with `per_node` it is a node,
whose learners average their gradients in every step (`synchronous.node`). The average
of a block is taken over all learners, though. It is the mean over the workers, because
the replicas of a node are equal and each node has as many of them; and it gives every
learner the same bits. With one node there is nothing to average, and every learner
keeps its bits.

Block momentum sets in by itself, see `filter.BlockFilter`. With `warmup` it is there
from a step on.

Cost for n bytes of parameters and L learners: 2n(L-1)/L a block, 6n(L-1)/L with Adam's
moments; with m learners a node 2n(m-1)/m more in every step. `exchange: bfloat16` sends
half the bytes of a block, and with `keep` learners send their largest changes only, see
`compression`.
Memory: 2P elements, or none without momentum and block learning rate; 2P more when
Adam's moments are extrapolated, and P for a second moment that is corrected.

The training survives the death of any learner: the others repeat the average at the end
of the block among themselves, see `Bmuf.change_members`.
"""

from collections.abc import Generator
from typing import Any

import torch
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
from espnet_distopt.algorithms.block.part import NO_LEAD, BlockSummary, Part, cut
from espnet_distopt.algorithms.synchronous.node import Node, StepsInNodes
from espnet_distopt.core.effects import AllReduceMean, Effect, Program, Ranks
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.noise_share import NoiseShare


class Fragment:
    """The blocks of some of a learner's parameters, Q elements.

    Attributes:
        filter: the global model of these parameters, and the momentum of their blocks.
        place: their place in the learner's flat buffer.
        params: that part of the buffer (Q,).
        steps: number of attempted steps since the last block's end.
        updates: number of updates that the optimizer had made then.

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
            self._compressed = CompressedAverage(part, config.keep)
        keeps_start = rounds or self._compressed is not None
        self.filter = BlockFilter(rule, part, keeps_start)
        self.steps = 0
        self.updates = learner.updates

    def message(self, learner: Learner, rule: BlockRule, ended: bool) -> Tensor:
        """Return the numbers to average beside the parameters; count a new block."""
        updates = learner.updates - self.updates
        self.steps, self.updates = 0, learner.updates
        loaded, decays, steps = False, list[float](), list[float]()
        if moments := self._moments:
            moments.notice_cleared()
            flat, loaded = moments.moments, moments.loaded
            decays, steps = flat.numbers(), flat.steps()
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
        counted = self._moments.moments.counted if self._moments else 0
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
        """Filter the parameters' mean, and end the block of the moments."""
        lead = self.filter.end_block(self.params, rule, summary)
        if self._moments:
            yield from self._moments.end_block(summary, lead, rule.corrected_workers)

    def begin_late(self, late: LateAverage, message: Tensor, updates: int) -> Program:
        """Begin the average of a block, which `end_late` takes."""
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
        """Take the average of the last block and filter it."""
        lead = NO_LEAD
        if summary.tau > 0:
            snapshot, mean = late.pair(PARAMS)
            lead = self.filter.end_block(mean, rule, summary)
            late.replace(self.params, snapshot, mean, updates)
        if self._moments:
            since, batches = updates - late.updates, rule.corrected_workers
            self._moments.end_late(late, summary, lead, since, batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the block, at any of its steps."""
        return {
            **self.filter.state_dict(),
            "steps": self.steps,
            "updates": self.updates,
            "moments": self._moments.state_dict() if self._moments else {},
            "compressed": self._compressed.state_dict() if self._compressed else None,
        }

    def load_state_dict(self, state: dict[str, Any], within: bool) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: what the block has begun with is needed now, and is not in the
                state; or the option `moments` has changed.
        """
        if state["moments"] and not self._moments:
            raise InputError(MOMENTS_CHANGED)
        self.filter.load_state_dict(state, self.params, within)
        self.steps, self.updates = state["steps"], state["updates"]
        if self._moments:
            self._moments.load_state_dict(state["moments"])
        if self._compressed:
            self._compressed.load_state_dict(state["compressed"])


class Bmuf(StepsInNodes):
    """Block momentum over local steps; moments kept, averaged, reset or extrapolated.

    Attributes:
        rule: the rule by which a block ends.
        node: this learner's node, which is one worker.
        fragments: the parts of the model that take turns in ending a block.
        noise: see `Algorithm`.
    """

    noise: NoiseShare
    survives = True

    def __init__(self, config: BlockConfig, learner: Learner) -> None:
        self._config, self._learner = config, learner
        self.node = node = Node(learner, config.per_node)
        workers = len(node.leaders)
        rule = config.rule(workers)
        self.rule = config.rule(len(node.living_leaders(learner)))
        self.wants_gradients = node.averages
        self.equal_steps = node.averages and workers == 1
        self.advice = config.advice(workers)
        self._size, self._per_node = learner.size, config.per_node
        # One worker alone has no average to wait for.
        self._delay = config.delay if workers > 1 else 0
        self._averaging = None if workers > 1 else (learner.rank,)
        self.fragments = [
            Fragment(config, learner, part, rule, self._averaging)
            for part in cut(learner, config.fragments)
        ]
        self.noise = NoiseShare(learner, rule.corrected_workers > 1)
        self._between = config.period // config.fragments
        self._compared_step = 1
        self._turn = 0
        self._late = LateAverage(max(len(f.params) for f in self.fragments))
        self._some_ended = False

    @property
    def _last(self) -> Fragment:
        """The fragment whose block has ended last, or has begun to end."""
        return self.fragments[self._turn - 1]

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters as the global model."""
        yield from super().start(learner)
        for fragment in self.fragments:
            fragment.filter.start(fragment.params)

    def change_members(self, learner: Learner, members: Members) -> None:
        """Take the rule for the workers that have taken part in the block's end.

        The default momentum is 1 - 1/N of these N workers, and the second moment is
        corrected for as many. Delta and rho stay as they are: rho says for how many
        minibatches Delta stands, whoever has made them.
        """
        super().change_members(learner, members)
        self.rule = self._config.rule(len(self.node.living_leaders(learner)))

    @property
    def averaged_batches(self) -> float:  # type: ignore[override]
        """The number of batches that a step of a block stands for.

        A block that goes g times as far as the mean of N workers moves the model as a
        step on N / g batches would. With fragments, the one that goes furthest counts.
        """
        gain = max(each.filter.gain(self.rule) for each in self.fragments)
        return max(1.0, self.rule.corrected_workers / gain)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of a block, average and filter."""
        for fragment in self.fragments:
            fragment.steps += 1
        if self._last.steps == self._compared_step:
            self.noise.sample()
        # The next block compares a later step: learners are further apart there.
        self.noise.sees = self._last.steps + 1 == self._compared_step
        if self._late.under_way and self._last.steps >= self._delay:
            yield from self._end_late(learner)
        if self._last.steps < self._between:
            return
        if self._delay:
            yield from self._begin_late(learner, ended=False)
        else:
            yield from self._end_block(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter blocks; join in those of learners with more data.

        Raises:
            UnequalStepsError: another learner of the node has more data.
        """
        yield from self.node.average(learner, ended=True)
        if self._late.under_way:
            yield from self._end_late(learner)
        complete = 0
        while complete < len(self.fragments):
            if self._delay:
                yield from self._begin_late(learner, ended=True)
                everybody_ended = yield from self._end_late(learner)
            else:
                everybody_ended = yield from self._end_block(learner, ended=True)
            complete += everybody_ended

    def next_stop(self, learner: Learner) -> int:
        """Return the step that takes this turn's average: others may wait there."""
        return learner.steps + self._between - self._last.steps + self._delay

    def can_pause(self, learner: Learner) -> bool:
        """Return False while learners with less data have ended their epoch already."""
        return not self._some_ended

    def pause(self, learner: Learner) -> Program:
        """Wait for the average in flight; the resumed run begins it once more."""
        if self._late.under_way:
            yield from self._late.wait()

    def _next(self) -> Fragment:
        """Return the fragment whose block ends now, and let the one after it wait."""
        fragment = self.fragments[self._turn]
        self._turn = (self._turn + 1) % len(self.fragments)
        return fragment

    def _end_block(self, learner: Learner, ended: bool) -> Generator[Effect, Any, bool]:
        """Average and filter; return whether every learner has ended its epoch."""
        fragment = self._next()
        mean = yield AllReduceMean(self._message(fragment, ended), self._averaging)
        summary = self._read(fragment, mean)
        if summary.tau > 0:
            yield from fragment.average()
            # Now the rule is that of the workers who have lived to take part.
            yield from fragment.end_block(self.rule, summary)
        return summary.ended == 1

    def _begin_late(self, learner: Learner, ended: bool) -> Program:
        """Begin the average of a block, which `_end_late` takes."""
        fragment = self._next()
        message = self._message(fragment, ended)
        yield from fragment.begin_late(self._late, message, learner.updates)

    def _end_late(self, learner: Learner) -> Generator[Effect, Any, bool]:
        """Take the average of the last block and filter it; return as `_end_block`."""
        summary = self._read(self._last, (yield from self._late.wait()))
        self._last.end_late(self._late, self.rule, summary, learner.updates)
        self._late.taken()
        return summary.ended == 1

    def _message(self, fragment: Fragment, ended: bool) -> Tensor:
        """Return the numbers to average beside a fragment; a new block begins."""
        numbers = fragment.message(self._learner, self.rule, ended)
        self._compared_step = self._compared_step % self._between + 1
        self.noise.sees = self._compared_step == 1
        gradients = self.noise.gradients.to(numbers)
        return torch.cat([gradients, gradients.square(), numbers])

    def _read(self, fragment: Fragment, mean: Tensor) -> BlockSummary:
        """Return what all learners know of a block, from the mean of the numbers."""
        size = self.noise.size
        parts = torch.split(mean, [size, size, len(mean) - 2 * size])
        gradients, squares, numbers = parts
        # They are of those who have lived to take part.
        workers = len(self.node.living_leaders(self._learner))
        self.noise.compare(squares - gradients.square(), 1 - 1 / workers)
        self.noise.use()
        summary = fragment.read(numbers)
        self._some_ended = 0 < summary.ended < 1
        return summary

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t; with `diloco` it is the look-ahead."""
        yield from ()
        model = torch.empty_like(learner.params)
        for fragment in self.fragments:
            fragment.filter.model(fragment.params, self.rule, model[fragment.place])
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the blocks, at any of their steps."""
        return {
            "learners": self._size,
            "per_node": self._per_node,
            "fragments": [fragment.state_dict() for fragment in self.fragments],
            "turn": self._turn,
            "late": self._late.state_dict(),
            "noise": self.noise.state_dict(),
            "compared_step": self._compared_step,
        }

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Take over the blocks of the others, who have just ended one.

        Only the simulation calls it, at an epoch's end: in a running training nobody
        can join learners that wait for each other (`algorithms.lifecycle`).
        """
        super().join(learner, state)
        for fragment in self.fragments:
            fragment.updates = learner.updates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Between two epochs the number of learners and `per_node` may change: Delta and
        rho stay as they are, as when learners die (`change_members`).

        Raises:
            InputError: the number of learners or `per_node` has changed within a block;
                or what the block has begun with is needed now, and is not in the state;
                or the option `fragments` or `moments` has changed.
        """
        then = state["learners"], state["per_node"]
        saved = state["fragments"]
        within = state["late"] is not None or any(f["steps"] for f in saved)
        if within and then != (self._size, self._per_node):
            raise InputError(
                "the state was saved within a block by {} learners with per_node = {} "
                "and cannot be used by {} with per_node = {}; resume with the same, or "
                "from the end of an epoch".format(*then, self._size, self._per_node)
            )
        if len(saved) != len(self.fragments):
            raise InputError(
                f"the state was saved with fragments: {len(saved)}; resume with the "
                "same, or remove the experiment's distopt/ folder to reset it"
            )
        for fragment, its in zip(self.fragments, saved, strict=True):
            fragment.load_state_dict(its, within)
        self._turn = state["turn"]
        self.noise.load_state_dict(state["noise"])
        self._compared_step = state["compared_step"]
        self.noise.sees = True
        last = self._last
        self._late.load_state_dict(state["late"], last.params, last.starts())
