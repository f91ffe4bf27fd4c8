"""Synchronous decentralised SGD (D-PSGD, SD-PSGD; Lian et al. 2017, arXiv 1705.09056).

Each learner trains on its own replica. In every step it averages that replica with
those of its neighbours, while it computes its gradient (algorithm 1, order "awc"):

    x_{k+1}^i = sum_j W_ij x_k^j - u_i(x_k^i)

    paper                 here
    x_k^i                 `learner.params` at the end of a step
    u_i                   the update of learner i's optimizer in the step; lr g_i for
                          SGD
    W                     row by row `core.mixing.mixing_weights`, see `Topology` there

The mixing of x_k begins as soon as a step has ended with x_k. It is applied at the end
of the next step as a correction, x += sum_j W_ij s_j - s_i, where s are the copies that
were sent. So no update is lost, and the mean over the learners is conserved. A constant
learning rate has a price that `allreduce` does not have: if the losses of the learners
have different curvatures, the mean converges to a point beside the optimum, at a
distance of O(lr). D-PSGD is stable on a curvature of h for lr h < 2/3 (ring of an even
number of learners) or lr h < 1 (complete).

Every learner must make as many steps an epoch as the others. The last element of a
message counts the mixings that its learner has made since the end of its epoch, and is
0 within the epoch. At the end of an epoch there are as many mixings, which are not
applied, as join all learners: one on a connected graph, and one for each round of the
alternating ring (`core.mixing.rounds_of`). If learners have unequal numbers of
steps, two that meet in one of these mixings have unequal counts. They raise an error,
and the driver then tells all other learners.

Cost for n bytes of parameters: 2n a step on a ring, 2n(M-1)/M where M learners take
their mean (complete, alternating), beside the computation, and the same at an epoch's
end for each of its mixings. Memory: P elements, and the messages received: 2P on a
ring, P where a mean is taken. All of it is used again in the next step, because
allocating so much anew takes longer than to copy it.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm, UnequalStepsError
from espnet_distopt.algorithms.synchronous.node import (
    check_nodes,
    check_per_node,
    per_node_of,
)
from espnet_distopt.core.effects import (
    AllReduceMean,
    Begin,
    Broadcast,
    Effect,
    NeighbourAllGather,
    Program,
    Wait,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.mixing import (
    Topology,
    alternating_group,
    mixing_weights,
    rounds_of,
)
from espnet_distopt.core.topology import LONGEST_RING
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.noise_share import NoiseShare


@dataclass(frozen=True, kw_only=True)
class DpsgdConfig:
    """Options of `dpsgd`.

    Attributes:
        topology: the neighbours of a learner: ring, randomized_ring (a ring in another
            order in each step, which mixes many learners much faster), alternating (the
            mean of a node in even steps, and of two nodes in odd ones; 2, 4, 8 ...
            nodes) or complete (all learners are neighbours). None means a ring of up to
            16 learners, and a randomized one for more.
        per_node: number of learners on each node, for alternating; ranks are numbered
            node by node. None means the number that the launcher gives.
        seed: seed of the orders of the randomized ring.
        second_moment: consistent corrects Adam's second moment, which is that of this
            learner's own batches, to that of all learners' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    topology: Topology | None = None
    per_node: int | None = None
    seed: int = 0
    second_moment: Literal["consistent", "local"] = "consistent"

    def __post_init__(self) -> None:
        check_per_node(self.per_node)


class Dpsgd(Algorithm):
    """Averaging with the neighbours in every step, beside the computation.

    Attributes:
        config: the options.
        topology: the neighbours of a learner.
        rounds: the number of mixings after which the matrices repeat, see `rounds_of`.
        mixings: number of mixings that have been applied, which is also the number k of
            the mixing that sends `sent`.
        sent: the message (P + K + 1,) of the mixing in flight: the parameters at the
            end of the last step, K elements of its gradient, which learners compare
            (`optimizers.noise_share`), and the number of mixings since the epoch's end,
            or 0.

    Raises:
        InputError: the topology is alternating, and neither the options nor the
            launcher say how many learners a node has, or there are not 2^d nodes.
    """

    noise: NoiseShare
    equal_steps = True

    def __init__(self, config: DpsgdConfig, learner: Learner) -> None:
        self.config = config
        if config.second_moment == "consistent":
            self.averaged_batches = learner.size
        ring: Topology = "ring" if learner.size <= LONGEST_RING else "randomized_ring"
        self.topology = config.topology or ring
        self.mixings = 0
        self._params = learner.params
        self._rank, self._size = learner.rank, learner.size
        self._per_node = 1
        if self.topology == "alternating":
            what = "dpsgd with topology: alternating"
            self._per_node = per_node_of(config, learner, what)
            _check_nodes(self._per_node, learner.size)
        self.rounds = rounds_of(self.topology, learner.size, self._per_node)
        several = learner.size > 1
        self.noise = NoiseShare(learner, several and self.averaged_batches > 1)
        size = learner.params.numel() + self.noise.size
        self.sent = learner.params.new_zeros(size + 1)
        self._weights: list[float] = []
        self._received = self.sent.new_empty(0)
        self._forget()

    @classmethod
    def check_size(cls, config: Any, size: int) -> None:
        """Raise InputError if an alternating ring cannot have `size` learners."""
        topology = getattr(config, "topology", None)
        if topology == "alternating" and config.per_node is not None:
            _check_nodes(config.per_node, size)

    def _forget(self) -> None:
        """Forget the mixing in flight and its correction; send the parameters next."""
        self._write()
        self._handle: Any = None
        self._correction: tuple[Tensor, float] | None = None

    def _write(self) -> None:
        """Write the parameters, and what learners compare, into the next message."""
        size = len(self._params)
        self.sent[:size] = self._params
        self.sent[size:-1] = self.noise.sample()

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters."""
        yield from super().start(learner)
        self._forget()

    def after_step(self, learner: Learner) -> Program:
        """Apply the mixing of the last step, and begin the mixing of this step.

        Raises:
            UnequalStepsError: a neighbour has come to the end of its epoch.
        """
        if learner.size == 1:
            return
        mixed, spread = yield from self._complete(learner)
        size = len(self._params)
        learner.params.add_(mixed[:size])
        self.noise.compare(mixed[size:].square(), spread)
        self.noise.use()
        self._correction = None
        self.mixings += 1
        self._write()
        yield from self._begin(self.mixings)

    def finish(self, learner: Learner) -> Program:
        """Wait for the mixing in flight, which the next epoch's first step applies.

        Raises:
            UnequalStepsError: a neighbour has not come to the end of its epoch.
        """
        if learner.size == 1:
            return
        yield from self._complete(learner)
        for ended in range(1, self.rounds + 1):
            self.sent[-1] = ended
            # The memory of the last messages has the correction for the next step.
            yield from self._begin(self.mixings + ended, anew=True)
            check_equal_steps(learner, (yield from self._receive()), ended)
        self.sent[-1] = 0.0

    def next_stop(self, learner: Learner) -> int:
        """Return a step that no learner can have passed.

        A learner may be a step ahead of its neighbours, and they of theirs. Where the
        neighbours change from round to round, two turns of all rounds have one whole
        turn in them, in which each learner has waited for all others.
        """
        if self.topology == "complete":
            return learner.steps + 2
        ahead = learner.size // 2 if self.rounds == 1 else 2 * self.rounds
        return learner.steps + 2 + ahead

    def pause(self, learner: Learner) -> Program:
        """Wait for the mixing in flight; the resumed run begins it once more."""
        if learner.size > 1:
            yield from self._complete(learner)

    def row(self, k: int) -> dict[int, float]:
        """Return this learner's row of the mixing matrix W_k: learner -> weight."""
        seed = self.config.seed
        return mixing_weights(self.topology, self._rank, self._size, k, seed)

    def group(self, k: int) -> tuple[int, ...] | None:
        """Return the learners that take their mean in mixing `k`; None means all."""
        if self.topology == "complete":
            return None
        return alternating_group(self._rank, self._size, self._per_node, k)

    def _begin(self, k: int, anew: bool = False) -> Program:
        """Begin mixing number `k`; `sent` must stay as it is until it is received.

        With `anew`, those of the last mixing stay as they are, too.
        """
        takes_mean = self.topology in ("complete", "alternating")
        # A mean is one message, of all who take it together.
        weights = {-1: 1.0} if takes_mean else self.row(k)
        weights.pop(self._rank, None)
        into: Tensor | None = None
        if not anew:
            if len(self._received) != len(weights):
                self._received = self.sent.new_empty((len(weights), len(self.sent)))
            into = self._received
        self._weights = list(weights.values())
        collective: AllReduceMean | NeighbourAllGather
        if takes_mean:
            mean = torch.empty_like(self.sent) if into is None else into[0]
            collective = AllReduceMean(mean.copy_(self.sent), self.group(k))
        else:
            collective = NeighbourAllGather(self.sent, tuple(weights), into)
        self._handle = yield Begin(collective)

    def _receive(self) -> Generator[Effect, Any, Tensor]:
        """Wait for the mixing in flight; return its messages, a row for each weight."""
        received: Tensor = yield Wait(self._handle)
        self._handle = None
        return received.view(-1, self.sent.numel())

    def _mixed(self, received: Tensor) -> Tensor:
        """Return sum_j W_ij (s_j - s_i), which overwrites the messages (senders, S)."""
        first, *others = self._weights
        total = received[0].sub_(self.sent).mul_(first)
        for weight, row in zip(others, received[1:], strict=True):
            total.add_(row.sub_(self.sent), alpha=weight)
        return total

    def _complete(
        self, learner: Learner
    ) -> Generator[Effect, Any, tuple[Tensor, float]]:
        """Return what the mixing of `sent` changes in it (P + K,), and its spread."""
        if self._correction is None:
            if self._handle is None:
                # A run begins or was resumed, perhaps on some of the learners only:
                # all of them take the number of the mixing from learner 0.
                count = self.sent.new_tensor([self.mixings], dtype=torch.float64)
                self.mixings = int((yield Broadcast(count)).item())
                yield from self._begin(self.mixings)
            received = yield from self._receive()
            check_equal_steps(learner, received, ended=0)
            self._correction = self._mixed(received)[:-1], self._spread()
        return self._correction

    def _spread(self) -> float:
        """Return the variance of what the mixing in flight changes, per unit of noise.

        A mean is one message, and stands for all who take part in it.
        """
        if self.topology in ("complete", "alternating"):
            members = self.group(self.mixings)
            return 1 - 1 / (len(members) if members else self._size)
        own = 1 - sum(self._weights)
        return (1 - own) ** 2 + sum(weight**2 for weight in self._weights)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the mean of all learners' parameters. Cost: 2n(N-1)/N bytes."""
        mean: Tensor = yield AllReduceMean(learner.params.detach().clone())
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the end of a step; `sent` equals the parameters then."""
        return {"mixings": self.mixings, "noise": self.noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned, after the parameters.

        Their mixing begins once more.
        """
        self.mixings = state["mixings"]
        self.noise.load_state_dict(state["noise"])
        self._forget()


def check_equal_steps(learner: Learner, received: Tensor, ended: int) -> None:
    """Check that the senders of messages have ended their epoch when `learner` has.

    Args:
        learner: the learner that has received the messages.
        received: the messages (senders, S), or their mean (1, S). The last column says
            how many mixings the sender has made since the end of its epoch, 0 within
            the epoch.
        ended: the same number of `learner`, when it sent its own message.

    Raises:
        UnequalStepsError: the numbers differ.
    """
    counts = received[:, -1]
    if counts.ne(ended).any():
        raise UnequalStepsError(learner, bool(counts.lt(ended).any()))


def _check_nodes(per_node: int, size: int) -> None:
    """Raise InputError unless there are 2^d nodes of `per_node` learners."""
    check_nodes(per_node, size)
    nodes = size // per_node
    if nodes & (nodes - 1):
        raise InputError(
            f"{nodes} nodes make no alternating exponential ring, which has 1, 2, 4, 8 "
            "... of them; use topology: randomized_ring, which takes any number"
        )
