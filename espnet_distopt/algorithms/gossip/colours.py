"""The colours of an epoch: who invites, who answers, and who lives to do so."""

import random
from collections.abc import Sequence
from typing import Literal

from espnet_distopt.core.topology import (
    deal_colours,
    living_other_colour,
    living_ring,
)

GossipTopology = Literal["ring", "random", "randomized_ring"]
"""Whom a learner may exchange with, see `adpsgd`."""


class Colours:
    """The place of one learner among those that gossip.

    Attributes:
        actives: the ranks that are active in this epoch, dead ones included.
        active: whether this learner invites others; a passive one only answers.
        neighbours: ranks of the living learners that this one may exchange with; none
            if this learner does not gossip, or all of the other colour have died.
        turn: how often this learner has chosen a neighbour in turn.

    Args:
        topology: `ring`, `random` or `randomized_ring`, see `adpsgd`.
        rank: the rank of this learner.
        living: the ranks that gossip, in the order of the ring.
        seed: the seed of the orders of the randomized ring.
    """

    def __init__(
        self,
        topology: GossipTopology,
        rank: int,
        living: Sequence[int],
        seed: int = 0,
    ) -> None:
        self._find = living_ring if topology == "ring" else living_other_colour
        self._shuffled = topology == "randomized_ring"
        self._seed = seed
        self._rank = rank
        self.turn = 0
        self.deal(living)

    def deal(self, living: Sequence[int]) -> None:
        """Deal the colours of an epoch; all learners do so with the same `living`."""
        self.hold(deal_colours(living), living)

    def change(self, living: Sequence[int]) -> None:
        """Find the neighbours anew: learners have died or joined within the epoch."""
        self.hold(self.actives, living)

    def hold(self, actives: Sequence[int], living: Sequence[int]) -> None:
        """Take over the colours of an epoch."""
        self.actives = tuple(actives)
        self.active = self._rank in self.actives
        gossips = self._rank in living
        self.neighbours = (
            self._find(self._rank, self.actives, living) if gossips else ()
        )

    def choose(self, source: random.Random) -> int:
        """Return the neighbour to invite: at random, or in turn.

        Args:
            source: what draws the neighbour where it is not this one's turn.
        """
        if not self._shuffled:
            return source.choice(self.neighbours)
        self.turn += 1
        return self._on_randomized_ring(self.turn - 1)

    def _on_randomized_ring(self, turn: int) -> int:
        """Return the passive learner after this one on a random ring, then the other.

        Two turns have the same ring, whose actives and passives alternate. As long as
        learners keep step, each turn pairs all of them, and nobody is invited twice.
        """
        drawn = random.Random(f"{self._seed} gossip ring {turn // 2}")
        actives, passives = list(self.actives), list(self.neighbours)
        drawn.shuffle(actives)
        drawn.shuffle(passives)
        return passives[(actives.index(self._rank) - turn % 2) % len(passives)]

    def passives(self, living: Sequence[int]) -> tuple[int, ...]:
        """Return the passive ones of `living`."""
        return tuple(rank for rank in living if rank not in self.actives)
