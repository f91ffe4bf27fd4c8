"""The colours of an epoch: who invites, who answers, and who lives to do so."""

from collections.abc import Sequence
from typing import Literal

from espnet_distopt.core.topology import (
    deal_colours,
    living_other_colour,
    living_ring,
)


class Colours:
    """The place of one learner among those that gossip.

    Attributes:
        actives: the ranks that are active in this epoch, dead ones included.
        active: whether this learner invites others; a passive one only answers.
        neighbours: ranks of the living learners that this one may exchange with; none
            if this learner does not gossip, or all of the other colour have died.

    Args:
        topology: `ring` or `random`, see `adpsgd`.
        rank: the rank of this learner.
        living: the ranks that gossip, in the order of the ring.
    """

    def __init__(
        self, topology: Literal["ring", "random"], rank: int, living: Sequence[int]
    ) -> None:
        self._find = living_ring if topology == "ring" else living_other_colour
        self._rank = rank
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

    def passives(self, living: Sequence[int]) -> tuple[int, ...]:
        """Return the passive ones of `living`."""
        return tuple(rank for rank in living if rank not in self.actives)
