"""Who takes how many batches of an epoch when learners take them from one queue."""

import heapq

from espnet_distopt.simulation.cluster import Compute


def shares(compute: Compute, done: list[int], total: int, group: int = 1) -> list[int]:
    """Return the number of batches that each learner takes of an epoch.

    Each takes the next batch as soon as it has computed its last one, so that a slow
    learner takes fewer. Waiting for communication is left out.

    Args:
        compute: how long steps take.
        done: for each learner, the steps that it made in earlier epochs.
        total: batches of the epoch, a multiple of `group`.
        group: so many learners, by rank, step together at the slowest one's pace.
    """
    taken = [0] * len(done)
    # (when it is free, its first rank); all are free at 0.
    queue = [(0.0, first) for first in range(0, len(done), group)]
    for _ in range(total // group):
        free, first = queue[0]
        ranks = range(first, first + group)
        busy = max(compute.of(rank, done[rank] + taken[rank]) for rank in ranks)
        for rank in ranks:
            taken[rank] += 1
        heapq.heapreplace(queue, (free + busy, first))
    return taken
