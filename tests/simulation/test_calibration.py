"""These tests check what is made of the figures that were measured on a cluster."""

import pytest

from espnet_distopt.simulation.calibration import (
    Computed,
    experiments,
    network,
    step_time,
)
from espnet_distopt.simulation.cluster_file import StepTime
from espnet_distopt.simulation.network import Link, Network

BETWEEN = {"between": 3e-5}
BOTH = {"between": 3e-5, "inside": 1e-6}


def test_two_learners_have_one_link() -> None:
    assert experiments(2, 1) == {"between": [(0, 1)]}


def test_nodes_show_what_their_learners_share() -> None:
    assert experiments(16, 4) == {
        "between": [(0, 4)],
        "card": [(0, 4), (1, 5), (2, 6), (3, 7)],
        "inside": [(0, 1)],
        "bus": [(0, 1), (2, 3)],
        "switch": [
            *((k, 4 + k) for k in range(4)),
            *((8 + k, 12 + k) for k in range(4)),
        ],
    }


@pytest.mark.parametrize(("size", "per_node"), [(2, 1), (5, 1), (12, 3), (40, 8)])
def test_no_learner_is_in_two_pairs_at_a_time(size: int, per_node: int) -> None:
    for pairs in experiments(size, per_node).values():
        ranks = [rank for pair in pairs for rank in pair]
        assert len(set(ranks)) == len(ranks) and max(ranks) < size


def test_pairs_that_are_as_fast_together_share_nothing() -> None:
    pairs = experiments(8, 4)
    found = network(
        4, pairs, {"between": 1e9, "card": 0.95e9, "inside": 4e9, "bus": 4e9}, BOTH
    )
    assert found == Network(
        per_node=4,
        between=Link(latency=3e-5, bandwidth=1e9),
        inside=Link(latency=1e-6, bandwidth=4e9),
    )


def test_what_is_shared_has_the_bandwidth_of_all_pairs() -> None:
    pairs = experiments(16, 4)
    measured = {"between": 1e9, "card": 3e8, "inside": 4e9, "bus": 3e9, "switch": 2e8}
    found = network(4, pairs, measured, BOTH)
    assert found.card == pytest.approx(4 * 3e8)
    assert found.bus == pytest.approx(2 * 2 * 3e9)
    assert found.switch == pytest.approx(2 * 8 * 2e8)


def test_a_switch_is_held_against_the_cards() -> None:
    """Pairs that are slow because of their card do not show a slow switch."""
    pairs = experiments(16, 4)
    measured = {"between": 1e9, "card": 3e8, "inside": 4e9, "bus": 4e9, "switch": 3e8}
    assert network(4, pairs, measured, BOTH).switch == float("inf")


def test_nothing_shared_is_slower_than_one_link() -> None:
    """Figures that say so are noise, and a cluster file may not."""
    found = network(
        4, experiments(8, 4), {"between": 1e9, "card": 1e8, "inside": 4e9}, BOTH
    )
    assert found.card == 1e9


def test_learners_of_one_machine_share_the_switch() -> None:
    found = network(1, experiments(4, 1), {"between": 2e9, "switch": 1e9}, BETWEEN)
    assert found.switch == pytest.approx(2 * 2 * 1e9)


def test_the_parts_of_a_step() -> None:
    computed = [
        Computed(batches, samples, 0.02 * batches + 0.0015 * samples)
        for batches, samples in ((10, 160), (10, 320), (4, 128), (7, 40))
    ]
    found = step_time(computed)
    assert found.fixed == pytest.approx(0.02)
    assert found.sample == pytest.approx(0.0015)


def test_batches_of_one_size_do_not_tell_the_parts_apart() -> None:
    computed = [Computed(10, 160, 1.0), Computed(20, 321, 2.0)]
    found = step_time(computed)
    assert found.fixed == 0
    assert found.of(16) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [(0.1, 1.0, {"fixed"}), (1.0, 0.1, {"sample"})],
)
def test_no_part_is_below_zero(small: float, large: float, expected: set[str]) -> None:
    """Fitted without a bound, the named part would be."""
    found = step_time([Computed(10, 100, small), Computed(10, 400, large)])
    parts = {"fixed": found.fixed, "sample": found.sample}
    assert {name for name, value in parts.items() if value == 0} == expected
    assert found != StepTime()
