"""Who talks to whom."""

from espnet_distopt.errors import InputError


def is_active(rank: int) -> bool:
    """Return whether the learner initiates exchanges: even ranks do, odd ones answer.

    Edges join learners of different colour only, so that no cycle of waits can form.
    """
    return rank % 2 == 0


def ring_neighbours(rank: int, size: int) -> tuple[int, ...]:
    """Return the neighbours of `rank` on a ring of `size` learners.

    Example:
        >>> ring_neighbours(0, 4)
        (1, 3)
        >>> ring_neighbours(1, 2)
        (0,)
        >>> ring_neighbours(0, 1)
        ()

    Raises:
        InputError: an odd ring of three or more: its two ends would have one colour.
    """
    if size > 1 and size % 2:
        raise InputError(
            f"a ring of active and passive learners needs an even number of them, "
            f"not {size}"
        )
    return tuple(sorted({(rank + 1) % size, (rank - 1) % size} - {rank}))
