"""The module divides an epoch's batches among learners as a work queue would."""

import heapq
from collections.abc import Sequence

from espnet_distopt.simulation.compute import Compute


def shares(
    compute: Compute,
    done: list[int],
    total: int,
    group: int = 1,
    living: Sequence[int] | None = None,
) -> list[int]:
    """Return the number of batches of an epoch that each learner takes.

    A learner takes the next batch as soon as it has computed its last one, so a slow
    learner takes fewer. The time that learners wait for communication does not count.

    Args:
        compute: how long each step takes.
        done: the number of steps that each learner has made in earlier epochs.
        total: the number of batches of the epoch; it must be a multiple of `group`.
        group: the number of learners, neighbours in rank, that step together at the
            pace of the slowest.
        living: the learners that take batches; None for all of them.
    """
    taken = [0] * len(done)
    # An entry is (the time at which a group is free, its first rank).
    queue = [(0.0, first) for first in range(0, len(done), group)]
    if living is not None:
        queue = [entry for entry in queue if entry[1] in living]
    for _ in range(total // group):
        free, first = queue[0]
        ranks = range(first, first + group)
        busy = max(compute.of(rank, done[rank] + taken[rank]) for rank in ranks)
        for rank in ranks:
            taken[rank] += 1
        heapq.heapreplace(queue, (free + busy, first))
    return taken
