"""A node: learners that step together, on the mean of their gradients.

    g_s = sum_j w_j g_{s,j} / sum_j w_j          over the learners j of node s

w_j is the number of samples in learner j's batch (`gradient_mean`). The learners of a
node begin at the same model and take the same steps, so their replicas stay equal, bit
for bit. To the other nodes they are one learner with a larger batch: the super learner
of `hadpsgd`, and the worker of `bmuf`. Ranks are numbered node by node, and each node
has as many learners as any other.
"""

from typing import Any

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.synchronous.allreduce import GradientMean
from espnet_distopt.core.effects import Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.topology import node_ranks
from espnet_distopt.errors import InputError


class Node:
    """The node of one learner.

    Attributes:
        ranks: the ranks of the learners on this node, in ascending order.
        leaders: the first rank of each node, in the order of the nodes.
        leads: whether this learner is its node's leader, the first of its ranks.
        averages: whether the node has several learners, which average their gradients
            in every step. The algorithm then wants gradients.

    Args:
        learner: the learner.
        per_node: the number of learners on each node, which divides their number.
    """

    def __init__(self, learner: Learner, per_node: int) -> None:
        self.ranks = node_ranks(learner.rank, per_node)
        self.leaders = tuple(range(0, learner.size, per_node))
        self.leads = learner.rank == self.ranks[0]
        self.averages = per_node > 1
        self._per_node = per_node
        self._average = GradientMean(learner, self.ranks) if self.averages else None

    def ranks_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the learners on the node of `rank`."""
        return node_ranks(rank, self._per_node)

    def living_leaders(self, learner: Learner) -> tuple[int, ...]:
        """Return the leaders of the nodes that live, in the order of the nodes."""
        living = learner.members.ranks
        return tuple(rank for rank in self.leaders if rank in living)

    def average(self, learner: Learner, ended: bool = False) -> Program:
        """Average the gradients of the node, or agree that its epoch has ended.

        Cost: 2n(m-1)/m bytes for n bytes of gradients and m learners on the node.

        Raises:
            UnequalStepsError: some learners of the node have ended their epoch, and
                others have not.
        """
        if self._average is not None:
            yield from self._average(learner, ended)

    def after_bucket(self, learner: Learner, number: int) -> Program:
        """Begin to average a part of the node's gradients, within a backward pass."""
        if self._average is not None:
            yield from self._average.after_bucket(learner, number)


class StepsInNodes(Algorithm):
    """An algorithm whose learners step together inside each node.

    Attributes:
        node: this learner's node; the subclass makes it.
    """

    node: Node

    @classmethod
    def check_size(cls, config: Any, size: int) -> None:
        """Raise InputError if the nodes would have unequal numbers of learners."""
        check_nodes(config.per_node, size)

    def lost_with(self, learner: Learner, rank: int) -> tuple[int, ...]:
        """Return the ranks of the node of `rank`: a node leaves as a whole."""
        return self.node.ranks_of(rank)

    def after_bucket(self, learner: Learner, number: int) -> Program:
        """Begin to average a part of the gradients, beside the backward pass."""
        yield from self.node.after_bucket(learner, number)

    def after_backward(self, learner: Learner) -> Program:
        """Average the gradients of the node's learners, weighted by samples.

        Raises:
            UnequalStepsError: another learner of the node has come to the end of its
                epoch.
        """
        yield from self.node.average(learner)

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """The replicas of a node are equal after each step."""
        return self.node.ranks


def check_per_node(per_node: int | None) -> None:
    """Raise InputError if the option `per_node` is no number of learners."""
    if per_node is not None and per_node < 1:
        raise InputError(f"per_node must be >= 1, not {per_node}")


def check_nodes(per_node: int | None, size: int) -> None:
    """Raise InputError if `size` learners do not make nodes of `per_node` each."""
    if per_node is not None and size % per_node:
        raise InputError(
            f"{size} learners do not make nodes of per_node = {per_node} each"
        )


def per_node_of(config: Any, learner: Learner, what: str) -> int:
    """Return the number of learners on a node, from the options or the launcher.

    Args:
        config: options with `per_node`, which None leaves to the launcher.
        learner: this learner.
        what: what needs the number, for the message.

    Raises:
        InputError: neither says it, or the nodes would have unequal numbers.
    """
    per_node: int | None = config.per_node or learner.per_node
    if per_node is None and learner.size > 1:
        raise InputError(
            f"{what} must know how many learners a node has, and the launcher does not "
            "say so: set per_node in distopt_conf"
        )
    if per_node is not None and learner.size % per_node:
        raise InputError(
            f"{learner.size} learners do not make nodes of {per_node} each, as the "
            "launcher says: set per_node in distopt_conf"
        )
    return per_node or 1
