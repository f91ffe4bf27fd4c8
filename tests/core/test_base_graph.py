"""The rounds of base-(k+1) graphs (Takezawa et al. 2023)."""

import math
from collections import Counter

import pytest

from espnet_distopt.core.base_graph import base_graph


@pytest.mark.parametrize("peers", [1, 2, 3, 4])
def test_rounds_are_few_and_so_are_peers(peers: int) -> None:
    for size in range(2, 130):
        rounds = base_graph(size, peers)
        assert len(rounds) <= 2 * math.log(size, peers + 1) + 2
        for edges in rounds:
            assert all(a < b for a, b in edges)
            met = Counter(learner for pair in edges for learner in pair)
            assert max(met.values()) <= peers


def test_six_learners_are_three_pairs() -> None:
    """Algorithm 3: 6 = 2 x 3 needs 3 + 1 rounds, 6 = 4 + 2 needs 5 (algorithm 2)."""
    rounds = base_graph(6, 1)
    assert len(rounds) == 4
    assert rounds[-1] == {(0, 3): 0.5, (1, 4): 0.5, (2, 5): 0.5}


def test_the_vector_of_five_learners() -> None:
    """The example of the module: learner 4 has the mean of all after three rounds."""
    x = [0.0, 1.0, 2.0, 7.0, 40.0]
    for edges in base_graph(5, 1)[:3]:
        for (a, b), weight in edges.items():
            x[a], x[b] = x[a] + weight * (x[b] - x[a]), x[b] + weight * (x[a] - x[b])
    assert x == pytest.approx([32.5, 2.5, 2.5, 2.5, 10.0])
    assert sum(x[:4]) == pytest.approx(40.0)
