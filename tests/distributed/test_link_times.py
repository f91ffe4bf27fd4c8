"""Learners measure their links together, and agree on what they have found."""

import pytest

from espnet_distopt.distributed.link_times import bandwidth, exchange_seconds, latency
from tests.processes import launch

pytestmark = pytest.mark.processes


def measured() -> tuple[float, float, float]:
    lead = latency((0, 2))
    both = bandwidth([(0, 2), (3, 1)], lead, target=1e-3)
    return lead, both, exchange_seconds([(1, 0)], 8)


def test_all_learners_get_the_same_figures() -> None:
    """One of five is in no pair."""
    found = launch(5, measured)
    assert len(set(found)) == 1
    assert all(figure > 0 for figure in found[0])
