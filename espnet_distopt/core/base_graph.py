"""Base-(k+1) graphs: rounds after which any number of learners have the exact mean.

Takezawa et al., "Beyond Exponential Graph: Communication-Efficient Topologies for
Decentralized Learning via Finite-time Convergence", NeurIPS 2023, arXiv 2305.11420. In
each round a learner averages with at most k others, and the product of the matrices of
all rounds is 1/N everywhere. With k = 1 and N = 2^d this is the hypercube, in d rounds.

    paper                         here
    hyper-hypercube H_k (alg. 1)  `_hyper_hypercube`: learners make a box whose sides
                                  are at most k + 1 long; round after round those on a
                                  line of one direction average
    simple base graph (alg. 2)    `_simple_base_graph`: N = sum_l a_l (k+1)^(p_l), in
                                  the digits of base k + 1
    base graph (alg. 3)           `base_graph`: N = p q, where p has all prime factors
                                  of up to k + 1

How the simple base graph has the mean of five learners with k = 1, 5 = 4 + 1:

    1. In two rounds learners 0 to 3, which are a part of 2^2, average to their mean.
       Learner 4, the part of 2^0, waits.
    2. In the third round learners 0 and 4 average with weight 4/5. Then learner 4 has
       the mean of all five, and learners 0 to 3 have it as their own mean.
    3. In two rounds learners 0 to 3 average to that mean.

Cost: at most 2 log_{k+1}(N) + 2 rounds, and at most k models a round. Who has nothing
to do in a round of the simple graph idles.
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

Learners = Sequence[int]
Edges = dict[tuple[int, int], float]
"""One round: two learners, the lower one first -> their weight for each other."""


@cache
def base_graph(size: int, peers: int) -> tuple[Edges, ...]:
    """Return the rounds of the base-(peers + 1) graph; none for one learner.

    Args:
        size: the number of learners, N >= 1.
        peers: the most learners that one averages with in a round, k >= 1.

    Example:
        >>> base_graph(4, 1) == ({(0, 1): 0.5, (2, 3): 0.5}, {(0, 2): 0.5, (1, 3): 0.5})
        True
        >>> base_graph(3, 1)[1] == {(0, 2): 2 / 3}
        True
        >>> [len(base_graph(size, 1)) for size in (3, 5, 6, 64)]
        [3, 5, 4, 6]
    """
    learners = range(size)
    simple = _simple_base_graph(learners, peers)
    rest = size
    for factor in range(2, peers + 2):
        while rest % factor == 0:
            rest //= factor
    groups = [learners[start : start + rest] for start in learners[::rest]]
    inside = [_simple_base_graph(group, peers) for group in groups]
    across = [_hyper_hypercube(learners[i::rest], peers) for i in range(rest)]
    split = _side_by_side(inside) + _side_by_side(across)
    return tuple(split if len(split) < len(simple) else simple)


def _hyper_hypercube(learners: Learners, peers: int) -> list[Edges]:
    """Return rounds for a number of learners whose prime factors are small enough."""
    rounds, stride = [], 1
    for side in _sides(len(learners), peers + 1):
        block = stride * side
        starts = [i for i in range(len(learners)) if i % block < stride]
        lines = [learners[i : i + block : stride] for i in starts]
        rounds.append(_cliques(lines))
        stride = block
    return rounds


@cache
def _sides(size: int, longest: int) -> tuple[int, ...]:
    """Return the fewest factors of `size` that are at most `longest`, ascending."""
    if size == 1:
        return ()
    divisors = [d for d in range(2, longest + 1) if size % d == 0]
    found = [(*_sides(size // side, longest), side) for side in divisors]
    fewest = min(map(len, found))
    return tuple(sorted(next(sides for sides in found if len(sides) == fewest)))


def _cliques(groups: Sequence[Learners]) -> Edges:
    """Return the round in which each group takes its mean."""
    edges = {}
    for group in groups:
        for pair in combinations(group, 2):
            edges[pair] = 1 / len(group)
    return edges


def _simple_base_graph(learners: Learners, peers: int) -> list[Edges]:
    """Return rounds for any number of learners (algorithm 2)."""
    parts = _digits(learners, peers + 1)
    wholes = [[r for cell in part for r in cell] for part in parts]
    first = _side_by_side([_hyper_hypercube(whole, peers) for whole in wholes])
    own: list[list[Edges]] = []
    for turn, cells in enumerate(parts[:-1]):
        others = [r for whole in wholes[turn + 1 :] for r in whole]
        handing = _hand_over(cells, others)
        cubes = [_hyper_hypercube(cell, peers) for cell in cells]
        own.append([{}] * turn + [handing] + _side_by_side(cubes))
    return first + _side_by_side(own)


def _digits(learners: Learners, base: int) -> list[list[Learners]]:
    """Split the learners by the digits of their number, the highest digit first.

    Returns for each digit that is not 0 as many cells of base^p learners as it says.
    """
    parts, start, cell = [], 0, 1
    while cell * base <= len(learners):
        cell *= base
    while start < len(learners):
        digit = (len(learners) - start) // cell
        stop = start + digit * cell
        if digit:
            parts.append([learners[i : i + cell] for i in range(start, stop, cell)])
        start, cell = stop, cell // base
    return parts


def _hand_over(cells: list[Learners], others: Learners) -> Edges:
    """Return the round after which each of `cells`, and `others`, have the exact mean.

    All learners of the cells have the same value before. Each of the others averages
    with one learner of each cell.
    """
    count = sum(map(len, cells)) + len(others)
    return {
        (min(a, b), max(a, b)): len(cell) / count
        for cell in cells
        for a, b in zip(cell, others, strict=False)
    }


def _side_by_side(several: Sequence[Sequence[Edges]]) -> list[Edges]:
    """Return the rounds of several groups of learners that average at the same time."""
    length = max(map(len, several), default=0)
    return [
        {pair: w for rounds in several for pair, w in _nth(rounds, k).items()}
        for k in range(length)
    ]


def _nth(rounds: Sequence[Edges], k: int) -> Edges:
    return rounds[k] if k < len(rounds) else {}
