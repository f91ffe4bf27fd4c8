"""Who talks to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.topology import is_active, ring_neighbours


@given(st.integers(1, 40).map(lambda half: 2 * half))
def test_edges_join_actives_with_passives_both_ways(size: int) -> None:
    edges = {(a, b) for a in range(size) for b in ring_neighbours(a, size)}
    assert all((b, a) in edges for a, b in edges)
    assert all(is_active(a) != is_active(b) for a, b in edges)
    assert all(abs(a - b) in (1, size - 1) for a, b in edges)
    assert len(edges) == (2 if size == 2 else 2 * size)


@pytest.mark.parametrize("size", [3, 5, 33])
def test_odd_rings_are_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"even number of them, not {size}"):
        ring_neighbours(0, size)
