"""Topologies of gossip: the learners with which a learner may average.

Gossip runs on graphs whose edges join an active and a passive learner, which are called
two colours. D-PSGD averages by mixing matrices instead, which are in `mixing`.
"""

from collections.abc import Collection, Sequence
from itertools import takewhile

LONGEST_RING = 16
"""The most learners that are on a ring by default. A longer ring mixes so slowly that
it costs accuracy: with 64 learners and Adam the loss was 4.9 % above all-reduce's, with
random pairs 0.9 % below it (docs/claims.md, `no_loss_adam`)."""


def node_ranks(rank: int, per_node: int) -> tuple[int, ...]:
    """Return the ranks on the node of `rank`; ranks are numbered node by node.

    Example:
        >>> node_ranks(5, 4)
        (4, 5, 6, 7)
    """
    first = rank // per_node * per_node
    return tuple(range(first, first + per_node))


def deal_colours(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the active ones of `ranks`: every other one, from the first.

    Active learners invite others and passive ones answer. Edges join learners of
    different colour only, so that no cycle of waits can form. Colours hold for an
    epoch, whoever dies in it, and a learner that joins within an epoch is passive: so
    learners that do not know of a death yet still agree on the colours.

    Example:
        >>> deal_colours((0, 1, 2, 3, 4))
        (0, 2, 4)
    """
    return tuple(ranks[::2])


def living_ring(
    rank: int, actives: Collection[int], living: Sequence[int]
) -> tuple[int, ...]:
    """Return the neighbours of `rank` on a ring that has closed over its gaps.

    On each side they are the nearest living learner of the other colour, and those of
    the other colour to which `rank` is the nearest. So the ring stays connected as long
    as both colours live. If its two ends have the same colour, no edge joins them: it
    is a path. Cost: O(N).

    Args:
        rank: the learner's rank, one of `living`.
        actives: the ranks that are active in this epoch, dead ones included.
        living: the ranks of all living learners on the ring, in its order.

    Example:
        >>> living_ring(0, (0, 2), (0, 1, 2, 3))
        (1, 3)
        >>> living_ring(0, (0, 2, 4), (0, 1, 2, 3, 4))
        (1,)
        >>> living_ring(4, (0, 2, 4), (0, 1, 2, 4))  # learner 3 has died
        (1,)
        >>> living_ring(0, (0, 2), (0, 2))
        ()
    """
    place = living.index(rank)
    before, after = list(living[:place]), list(living[place + 1 :])
    if (living[0] in actives) != (living[-1] in actives):
        before, after = after + before, after + before
    sides = after, before[::-1]
    near = {n for side in sides for n in _nearest(rank, actives, side)}
    return tuple(sorted(near))


def _nearest(rank: int, actives: Collection[int], side: list[int]) -> list[int]:
    """Return the neighbours of `rank` on one side, whose learners are nearest first."""

    def alike(other: int) -> bool:
        return (other in actives) == (rank in actives)

    first = next((n for n, other in enumerate(side) if not alike(other)), len(side))
    if first > 0:  # A learner of this colour is nearer to all but the first.
        return side[first : first + 1]
    return list(takewhile(lambda other: not alike(other), side))


def living_other_colour(
    rank: int, actives: Collection[int], living: Sequence[int]
) -> tuple[int, ...]:
    """Return all living passive learners for an active one, and the other way round.

    Args:
        rank: the learner's rank.
        actives: the ranks that are active in this epoch, dead ones included.
        living: the ranks of all living learners.

    Example:
        >>> living_other_colour(0, (0, 2, 4), (0, 1, 2, 3, 4))
        (1, 3)
        >>> living_other_colour(3, (0, 2, 4), (0, 1, 3, 4))
        (0, 4)
    """
    active = rank in actives
    return tuple(other for other in living if (other in actives) != active)
