"""How long messages take between the learners of a process group.

Learners exchange in pairs, as in gossip: each sends to its partner, and receives from
it at the same time. Several pairs that exchange at one time show what they share.
"""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

Pair = tuple[int, int]
"""The ranks of two learners that exchange."""

ROUNDS = 50
"""The number of exchanges of empty messages in a row, of which the mean counts."""

SMALLEST, LARGEST = 1 << 20, 1 << 28
"""The least and the most bytes of a message by which a bandwidth is measured."""

REPEATS = 5
"""The number of repeats. Only the fastest counts, because other work on the machines
slows an exchange down, and the first exchange also opens the connections."""


def exchange_seconds(pairs: Sequence[Pair], nbytes: int, rounds: int = 1) -> float:
    """Return the seconds of an exchange, if all pairs exchange at one time.

    All learners of the default process group call it with the same arguments, and all
    get the same figure: the fastest of a few repeats, each until the last pair is done.

    Args:
        pairs: the pairs that exchange. No learner is in two of them, and learners in
            none of them wait.
        nbytes: the size of each message, in bytes.
        rounds: the number of exchanges that are made in a row and divided by.
    """
    rank = dist.get_rank()
    partner = {a: b for pair in pairs for a, b in (pair, pair[::-1])}.get(rank)
    sent = torch.zeros(nbytes, dtype=torch.uint8)
    received = torch.empty_like(sent)
    measured = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(rounds if partner is not None else 0):
            sending = dist.isend(sent, partner)
            receiving = dist.irecv(received, partner)
            assert sending is not None and receiving is not None
            sending.wait()
            receiving.wait()
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        measured.append(float(seconds) / rounds)
    return min(measured)


def latency(pair: Pair) -> float:
    """Return the seconds that an empty message takes one way between two learners.

    All learners call it, as with `exchange_seconds`.
    """
    return exchange_seconds([pair], 1, ROUNDS)


def bandwidth(pairs: Sequence[Pair], lead: float, target: float) -> float:
    """Return the bytes a second of each pair in each direction.

    All pairs exchange at one time. All learners call it, as with `exchange_seconds`. A
    message takes `lead` seconds whatever its size (`latency`), and shall take about
    `target`: its size is found from a short one, and is the same for all learners.
    """
    seconds = exchange_seconds(pairs, SMALLEST)
    wanted = int(SMALLEST * target / seconds)
    nbytes = min(max(wanted, SMALLEST), LARGEST)
    seconds = exchange_seconds(pairs, nbytes)
    # On a busy machine the latency may have come out longer than the whole message.
    return nbytes / max(seconds - lead, seconds / 2)
