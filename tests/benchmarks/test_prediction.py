"""These tests check the predicted step times against sums by hand."""

import pytest
from prediction.model import (
    METHODS,
    T4,
    Load,
    loads,
    search,
    step_seconds,
    with_overlap,
)

SLOW_CARD = {"compute": 1.0, "card": 1.0, "link": 1.0, "bus": 0.0, "overlap": 0.5}
"""A message of the model's size takes a second through a card, and none in a node."""


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        # A tree of two nodes sends the model once each way; half of it hides.
        ("ddp", 1 + 1 - 0.5),
        # At distances of 1, 2 and 4 learners, so many messages pass a card.
        ("sgp", 1 + (1 + 2 + 4) / 3),
        # Two of three exchanges stay inside a node; the third has four through a card.
        ("exp", (1 + 1 + 4) / 3),
        # Every other all-reduce is one of two nodes, which hides behind the step.
        ("aer", (1 + 1) / 2),
    ],
)
def test_steps_of_two_nodes_of_four(method: str, seconds: float) -> None:
    found = step_seconds(method, per_node=4, learners=8, **SLOW_CARD)  # type: ignore[arg-type]
    assert found == pytest.approx(seconds)


def test_ddp_hides_no_more_than_the_backward_pass() -> None:
    found = step_seconds("ddp", 4, 8, 0.3, card=1.0, link=1.0, bus=0.0, overlap=0.5)
    assert found == pytest.approx(0.3 + 1 - 0.2)


def test_a_ring_is_one_connection_and_pairs_are_four() -> None:
    """A fast card does not help all-reduce, whose ring has one message at a time."""
    fast = {**SLOW_CARD, "card": 0.25}
    ring = step_seconds("ddp", per_node=4, learners=8, **fast)
    assert ring == pytest.approx(1 + 1 - 0.5)
    assert step_seconds("exp", per_node=4, learners=8, **fast) == pytest.approx(1)


def test_an_exchange_inside_a_node_loads_its_bus_with_all_learners() -> None:
    near, _, far = loads("exp", per_node=4, learners=8)
    assert near == [Load(card=0, link=0, bus=4)]
    assert far == [Load(card=4, link=1, bus=0)]


def test_search_finds_a_minimum() -> None:
    found = search(lambda p: (p[0] - 1) ** 2 + (p[1] + p[0]) ** 2, [0.0, 0.0])
    assert found == pytest.approx([1, -1], abs=1e-3)


def test_a_calibration_has_five_rows_of_a_cluster() -> None:
    rows = [cell[1:] for cell in with_overlap(0.5).rows if cell[0] == T4]
    assert rows == [*((16, method) for method in METHODS), (32, "aer")]
