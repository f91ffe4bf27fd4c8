"""Asynchronous decentralised SGD (AD-PSGD; Lian et al. 2018, arXiv 1710.06952).

Each learner trains on its own replica; beside the training loop, pairs of neighbours on
a ring average their replicas, each pair on its own, with no barrier anywhere:

    X_{k+1} = X_k W_k - lr g_i(X_{k-tau_k}) e_i^T        (section 3, eq. 2 and 3)

    paper                 here
    X (columns x^i)       `learner.params`, one a learner
    W_k (1/2, 1/2)        one `Exchange` between an active and a passive learner
    tau_k                 staleness, `Published.staleness`
    active / passive      even / odd ranks: actives initiate, passives only answer, so
                          no cycle of waits can form

The pair average is applied in delta form, x_a += (s_p - s_a) / 2, where s are the sent
copies: optimizer steps taken during an exchange are never lost, and the mean over all
learners is conserved. Cost: n bytes a step at most, beside the computation, for n bytes
of parameters. Memory: 3P elements, plus the driver's receive buffer.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.effects import (
    AllReduceMean,
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
)
from espnet_distopt.errors import InputError
from espnet_distopt.learner import Learner
from espnet_distopt.published import Published
from espnet_distopt.topology import is_active, ring_neighbours


@dataclass(frozen=True, kw_only=True)
class AdpsgdConfig:
    """Options of `adpsgd`.

    Attributes:
        max_staleness: training waits for an exchange that has been in flight for this
            many own steps, so that no correction is older (the bound T of the paper).
        from_consensus: begin each epoch at the consensus model, not at the learner's
            own parameters.
        seed: of the choice of neighbours.
    """

    max_staleness: int = 16
    from_consensus: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_staleness < 1:
            raise InputError(f"max_staleness must be >= 1, not {self.max_staleness}")


class Adpsgd(Algorithm):
    """Pairwise asynchronous averaging on a ring."""

    wants_gossip = True

    def __init__(self, config: AdpsgdConfig, learner: Learner) -> None:
        self.config = config
        self.neighbours = ring_neighbours(learner.rank, learner.size)
        self.published = Published(learner)
        self._choice = random.Random(f"{config.seed} {learner.rank}")
        self._exchanges = 0

    @classmethod
    def check_size(cls, config: Any, size: int) -> None:
        """Raise InputError for a ring that cannot be two-coloured."""
        ring_neighbours(0, size)

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters, and publish them."""
        yield from super().start(learner)
        self.published.publish()

    def after_step(self, learner: Learner) -> Program:
        """Apply what the gossip brought and publish; wait only beyond the bound."""
        if learner.size == 1:
            return
        self.published.publish()
        while self.published.age() >= self.config.max_staleness:
            yield AwaitGossip()
            self.published.publish()

    def gossip(self, learner: Learner) -> Program:
        """Exchange with one neighbour after another."""
        if learner.size == 1:
            return
        if is_active(learner.rank):
            while (yield AwaitStep()):
                peer = self._choice.choice(self.neighbours)
                yield Invite(peer)
                yield from self._average_with(peer)
            for peer in self.neighbours:
                yield Retire(peer)
        else:
            while (peer := (yield AwaitInvitation(self.neighbours))) is not None:
                yield from self._average_with(peer)

    def _average_with(self, peer: int) -> Program:
        received = yield Exchange(peer, self.published.lend())
        self.published.correct(received)
        self._exchanges += 1

    def finish(self, learner: Learner) -> Program:
        """Apply the last corrections."""
        yield from ()
        self.published.publish()

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the mean over the learners. Cost: 2n(N-1)/N bytes."""
        mean: Tensor = yield AllReduceMean(learner.params.detach().clone())
        if self.config.from_consensus:
            learner.params.copy_(mean)
            self.published.publish()
        return mean

    def metrics(self) -> dict[str, float]:
        """Return exchanges and mean staleness (own steps) since the last call."""
        staleness = self.published.staleness
        count = sum(staleness.values())
        total = sum(steps * times for steps, times in staleness.items())
        figures = {"exchanges": float(self._exchanges)}
        if count:
            figures["staleness"] = total / count
        self._exchanges = 0
        staleness.clear()
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence of neighbours."""
        version, internal, gauss = self._choice.getstate()
        return {"choice": [version, list(internal), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sequence of neighbours, and publish the restored parameters."""
        version, internal, gauss = state["choice"]
        self._choice.setstate((version, tuple(internal), gauss))
        self.published.publish()
