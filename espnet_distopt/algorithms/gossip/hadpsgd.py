"""Hierarchical AD-PSGD (H-ADPSGD; Zhang et al., Interspeech 2019, arXiv 1907.05701).

The learners of a node step together, on the mean of their gradients, and so make up one
super learner. Super learners average their replicas in pairs, as in `adpsgd`:

    g_s = sum_j w_j g_{s,j}(x_s) / sum_j w_j      over the learners j of node s
    X_{k+1} = X_k W_k - lr g_s(X_{k-tau_k}) e_s^T

    paper                 here
    super learner s       a node: `per_node` consecutive ranks
    its all-reduce        `synchronous.node`, in every step
    W_k                   an `Exchange` between the leaders (first ranks) of two nodes

The gossip of a node's leader may hand over a correction at any time. At the end of each
step the leader tells its node whether one is pending, and if so broadcasts it; with it
go the shares by which second moments are corrected (`optimizers.noise_share`). So all
replicas of a node stay equal, bit for bit. With one node this is `allreduce`; with one
learner a node it is `adpsgd`.

If a learner dies, its whole node leaves the run, because the others of the node hold
the same replica and cannot step without it. The other nodes go on.

Cost of a step, for n bytes of parameters and m learners a node: 2n(m-1)/m bytes inside
the node, and n more when a correction has come; between nodes n at most, beside the
computation. Memory: 2P elements (gradient and correction); a leader needs 1P beside
that of `adpsgd`.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd, AdpsgdConfig
from espnet_distopt.algorithms.gossip.snapshot import HALF
from espnet_distopt.algorithms.synchronous.node import (
    Node,
    StepsInNodes,
    check_per_node,
    per_node_of,
)
from espnet_distopt.core.effects import AllReduceMean, Broadcast, Effect, Program
from espnet_distopt.core.learner import Learner


@dataclass(frozen=True, kw_only=True)
class HadpsgdConfig(AdpsgdConfig):
    """Options of `hadpsgd`: those of `adpsgd`, applied between nodes, and one more.

    Attributes:
        per_node: number of learners on each node; ranks are numbered node by node. None
            means the number that the launcher gives.
    """

    per_node: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_per_node(self.per_node)


class Hadpsgd(StepsInNodes, Adpsgd):
    """AD-PSGD between nodes, synchronous SGD inside each.

    Attributes:
        node: this learner's node, whose leader exchanges with those of other nodes.

    Raises:
        InputError: neither the options nor the launcher say how many learners a node
            has, or the nodes would have unequal numbers of them.
    """

    def __init__(self, config: HadpsgdConfig, learner: Learner) -> None:
        self.node = node = Node(learner, per_node_of(config, learner, "hadpsgd"))
        self.wants_gradients = self.equal_steps = node.averages
        super().__init__(config, learner)
        follows = len(node.leaders) > 1 and not node.leads
        self._correction = learner.params.new_empty(
            learner.params.numel() if follows else 0
        )

    def _gossip_ranks(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks of the living leaders, in the order of their nodes."""
        return self.node.living_leaders(learner)

    def _possible_ranks(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks of all leaders, in the order of their nodes."""
        return self.node.leaders

    def end_steps(self, learner: Learner) -> Program:
        """Check that the whole node has come to the end of its epoch.

        Raises:
            UnequalStepsError: another learner of the node has not.
        """
        yield from self.node.average(learner, ended=True)

    def lockstep(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks of the node, whose learners step together."""
        return self.node.ranks

    def next_stop(self, learner: Learner) -> int:
        """Return the next step if the node has several learners.

        Another one of them may have begun that step already.
        """
        return learner.steps + self.node.averages

    def _correct(self, learner: Learner) -> Program:
        """Publish, and apply the leader's pending correction on the whole node."""
        if len(self.node.leaders) == 1:
            return
        self.noise.sample()
        difference = self.snapshot.take() if self.node.leads else None
        # They lie on the CPU, so that no step waits for a GPU to read them.
        numbers = [float(difference is not None), *self.noise.measured]
        told = torch.tensor(numbers, dtype=torch.float64)
        taken, *self.noise.shares = (yield from self._from_leader(told)).tolist()
        if taken:
            message = self._correction if difference is None else difference
            yield from self._from_leader(message)
            learner.params.add_(message, alpha=HALF)
        if difference is not None:
            self.snapshot.recycle()

    def _from_leader(self, tensor: Tensor) -> Generator[Effect, Any, Tensor]:
        """Overwrite `tensor` by that of the node's leader, and return it."""
        if self.node.averages:
            yield Broadcast(tensor, self.node.ranks)
        return tensor

    def _mean(self, learner: Learner, tensor: Tensor) -> Generator[Effect, Any, Tensor]:
        """Replace `tensor` by its mean over the nodes, and return it.

        The learners of a node have equal replicas, so that only leaders average.
        """
        if self.node.leads:
            # A node that dies meanwhile changes the leaders.
            while (yield AllReduceMean(tensor, self._gossip_ranks(learner))) is None:
                pass
        return (yield from self._from_leader(tensor))
