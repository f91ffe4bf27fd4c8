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
    theta_t, Delta_n          `filter.theta`, `filter.delta` (see `block_filter`)
    theta_init                computed from these when it is needed
    rho_n                     `filter.rho`: minibatches equivalent to Delta_n

BMUF-Adam (Chen, Ding and Huo, ICASSP 2020) carries Adam's moments along to theta_init,
see `moments`. With other rules for the end of a block the algorithm is Local SGD,
SlowMo or DiLoCo: see `local_sgd`, `slowmo` and `diloco`. With a `delay` the next
block's steps hide the communication, see `delayed`.

A worker of the paper, of which there are N, is a learner; with `per_node` it is a node,
whose learners average their gradients in every step (`synchronous.node`). The average
of a block is taken over all learners, though. It is the mean over the workers, because
the replicas of a node are equal and each node has as many of them; and it gives every
learner the same bits. With one node there is nothing to average, and every learner
keeps its bits.

Cost for n bytes of parameters and L learners: 2n(L-1)/L a block, 6n(L-1)/L with Adam's
moments; with m learners a node 2n(m-1)/m more in every step. `exchange: bfloat16` sends
half the bytes of a block, see `bfloat16`; with `keep` learners send their largest
changes only, see `compression`.
Memory: 2P elements, or none without momentum and block learning rate; 2P more when
Adam's moments are extrapolated.

The training survives the death of any learner: the others repeat the average at the end
of the block among themselves, see `Bmuf.change_members`.
"""

from collections.abc import Generator
from typing import Any

from torch import Tensor

from espnet_distopt.algorithms.block.bfloat16 import average_changes
from espnet_distopt.algorithms.block.block_filter import BlockFilter
from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.compression import CompressedAverage
from espnet_distopt.algorithms.block.delayed import PARAMS, LateAverage
from espnet_distopt.algorithms.block.learning_rates import LearningRates
from espnet_distopt.algorithms.block.message import Agreed, read_message, write_message
from espnet_distopt.algorithms.block.moments import BlockMoments
from espnet_distopt.algorithms.block.rule import BlockConfig
from espnet_distopt.algorithms.synchronous.node import Node, StepsInNodes
from espnet_distopt.core.effects import AllReduceMean, Effect, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError


class Bmuf(StepsInNodes):
    """Block momentum over local steps; moments kept, averaged, reset or extrapolated.

    Attributes:
        rule: the rule by which a block ends.
        node: this learner's node, which is one worker.
        filter: the global model, and the momentum of its blocks.
    """

    survives = True

    def __init__(self, config: BlockConfig, learner: Learner) -> None:
        self._config = config
        self.node = node = Node(learner, config.per_node)
        workers = len(node.leaders)
        rule = config.rule(workers)
        self.rule = config.rule(len(node.living_leaders(learner)))
        self.wants_gradients = node.averages
        self.equal_steps = node.averages and workers == 1
        self.averaged_batches = self.rule.averaged_batches
        self._period = config.period
        # One worker alone has no average to wait for.
        self._delay = config.delay if workers > 1 else 0
        rounds = config.exchange == "bfloat16" and workers > 1
        ranks = self._averaging = None if workers > 1 else (learner.rank,)
        self._block_steps = 0
        self._some_ended = False
        self._updates = learner.updates
        self._size, self._per_node = learner.size, config.per_node
        self._params = learner.params
        self._moments = None
        if rule.moments != "local":
            changes_of = config.period if rounds else None
            self._moments = BlockMoments(
                rule.moments, learner, ranks, changes_of, config.moments_every
            )
        self._rates = LearningRates(learner) if rule.follows_lr else None
        compresses = config.compresses and workers > 1
        self.filter = BlockFilter(
            rule, learner.params, config.period, self._rates, rounds or compresses
        )
        self._rounds = rounds
        self._late = LateAverage()
        self._compressed = None
        if compresses:
            self._compressed = CompressedAverage(learner, config.keep, config.bits)

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters as the global model."""
        yield from super().start(learner)
        self.filter.start(learner.params)

    def change_members(self, learner: Learner, members: Members) -> None:
        """Take the rule for the workers that have taken part in the block's end.

        The default momentum is 1 - 1/N of these N workers, and the second moment is
        corrected for as many. Delta and rho stay as they are: rho says for how many
        minibatches Delta stands, whoever has made them.
        """
        super().change_members(learner, members)
        self.rule = self._config.rule(len(self.node.living_leaders(learner)))
        self.averaged_batches = self.rule.averaged_batches

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
        """End the last, shorter block; join in those of learners with more data.

        Raises:
            UnequalStepsError: another learner of the node has more data.
        """
        yield from self.node.average(learner, ended=True)
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
        agreed = self._read((yield self._mean(message)))
        if agreed.tau > 0:
            yield from self._average(learner.params)
            k = self.filter.end_block(learner.params, self.rule, agreed)
            if self._moments:
                yield from self._moments.end_block(agreed, k)
        return agreed.share_ended == 1

    def _average(self, params: Tensor) -> Program:
        """Overwrite `params` (P,) by their mean, or by what was sent of it."""
        if self._compressed:
            yield from self._compressed.average(params, self.filter.block_start())
        elif self._rounds:
            start = self.filter.block_start()
            yield from average_changes(params, start, self._averaging)
        else:
            yield self._mean(params)

    def _mean(self, tensor: Tensor) -> AllReduceMean:
        """Return the effect that replaces `tensor` by its mean over the workers."""
        return AllReduceMean(tensor, self._averaging)

    def _begin_late(self, learner: Learner, ended: bool) -> Program:
        """Begin the average of a block, which `_end_late` takes."""
        message, moments = self._message(learner, ended), self._moments
        tensors = {PARAMS: learner.params}
        averaged = [PARAMS]
        if moments:
            flats = moments.begin_late()
            tensors |= flats
            averaged += flats if moments.averaged else ()
        yield from self._late.begin(
            message, tensors, averaged, self._starts(), learner.updates
        )

    def _starts(self) -> dict[str, BlockStart]:
        """Return the starts since which a late average sends changes, with names."""
        if not self._rounds:
            return {}
        moments = self._moments.starts() if self._moments else {}
        return {PARAMS: self.filter.block_start(), **moments}

    def _end_late(self, learner: Learner) -> Generator[Effect, Any, bool]:
        """Take the average of the last block and filter it; return as `_end_block`."""
        late = self._late
        agreed = self._read((yield from late.wait()))
        if agreed.tau > 0:
            with self.filter.ending(self.rule, agreed) as end:
                for part, snapshot, mean in late.pieces(PARAMS):
                    end.to_start(mean, part)
                    late.replace(learner.params[part], snapshot, mean, learner.updates)
            if self._moments:
                since = learner.updates - late.updates
                self._moments.end_late(late, agreed, end.k, since)
        elif self._moments:
            self._moments.cancel_late(agreed)
        late.taken()
        return agreed.share_ended == 1

    def _message(self, learner: Learner, ended: bool) -> Tensor:
        """Return the numbers to average beside the parameters; count a new block."""
        updates = learner.updates - self._updates
        self._block_steps, self._updates = 0, learner.updates
        loaded, steps = False, list[float]()
        if self._moments:
            loaded, steps = self._moments.loaded, self._moments.steps()
        return write_message(learner, updates, ended, loaded, self._rates, steps)

    def _read(self, mean: Tensor) -> Agreed:
        """Return what all learners know of the block, from the mean of the numbers."""
        agreed = read_message(mean, self._rates)
        self._some_ended = 0 < agreed.share_ended < 1
        return agreed

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the global model theta_t; with `diloco` it is the look-ahead."""
        yield from ()
        return self.filter.model(learner.params, self.rule)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the block, at any of its steps."""
        return {
            "learners": self._size,
            "per_node": self._per_node,
            **self.filter.state_dict(),
            "block_steps": self._block_steps,
            "updates": self._updates,
            "moments": self._moments.state_dict() if self._moments else {},
            "rates": list(self._rates.last) if self._rates else [],
            "late": self._late.state_dict(),
            "compressed": self._compressed.state_dict() if self._compressed else None,
        }

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Take over the block of the others, who have just ended one."""
        super().join(learner, state)
        self._updates = learner.updates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Between two blocks the number of learners and `per_node` may change: Delta and
        rho stay as they are, as when learners die (`change_members`).

        Raises:
            InputError: the number of learners or `per_node` has changed within a block;
                or what the block has begun with is needed now, and is not in the state;
                or the option `moments` has changed.
        """
        then = state["learners"], state.get("per_node", 1)
        within = state["block_steps"] > 0 or state.get("late") is not None
        if within and then != (self._size, self._per_node):
            raise InputError(
                "the state was saved within a block by {} learners with per_node = {} "
                "and cannot be used by {} with per_node = {}; resume with the same, or "
                "from the end of an epoch".format(*then, self._size, self._per_node)
            )
        self.filter.load_state_dict(state, self._params, within)
        self._block_steps = state["block_steps"]
        self._updates = state["updates"]
        if self._moments:
            self._moments.load_state_dict(state["moments"])
        if self._rates:
            self._rates.last = list(state["rates"])
        self._late.load_state_dict(state.get("late"), self._params, self._starts())
        if self._compressed:
            self._compressed.load_state_dict(state.get("compressed"))
