"""These tests check the clock and the models of time against closed forms."""

from collections.abc import Callable
from typing import Any

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.cluster import Compute, Link, Network


def test_events_are_ordered_by_time_and_then_by_number() -> None:
    clock, seen = Clock(), list[tuple[str, int]]()

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, clock.now))

    clock.at(20, note("c"))
    clock.at(10, note("a"))
    clock.at(10, lambda: clock.at(clock.later(10e-9), note("d")))
    clock.at(10, note("b"))
    while clock.tick():
        pass
    assert seen == [("a", 10), ("b", 10), ("c", 20), ("d", 20)]


def test_steps_are_constant_and_slowed() -> None:
    compute = Compute(seconds=0.5, slowdown={1: 10})
    assert [compute.of(rank, 7) for rank in range(3)] == [0.5, 5.0, 0.5]


def test_steps_are_log_normal_about_their_median() -> None:
    compute = Compute(seconds=0.2, spread=0.5, slowdown={0: 3}, seed=1)
    times = sorted(compute.of(0, step) for step in range(999))
    assert times[499] == pytest.approx(0.6, rel=0.1)
    # These quantiles lie one standard deviation below and above the median.
    assert times[839] / times[499] == pytest.approx(1.65, rel=0.1)
    assert times[499] / times[159] == pytest.approx(1.65, rel=0.1)


def test_a_time_depends_on_nothing_but_what_it_is_of() -> None:
    keys = [(rank, step) for rank in range(3) for step in range(3)]
    one, other = Compute(spread=1, seed=5), Compute(spread=1, seed=5)
    times = [one.of(*key) for key in keys]
    assert times == [other.of(*key) for key in reversed(keys)][::-1]
    assert len(set(times)) == len(keys)
    assert one.of(0, 0) != Compute(spread=1, seed=6).of(0, 0)


def test_steps_are_drawn_from_a_trace() -> None:
    trace = [0.1, 0.2, 0.7]
    compute = Compute(trace=trace, slowdown={1: 10}, seed=3)
    times = [compute.of(0, step) for step in range(300)]
    assert set(times) == set(trace)
    assert times == [Compute(trace=trace, seed=3).of(0, step) for step in range(300)]
    assert times != [Compute(trace=trace, seed=4).of(0, step) for step in range(300)]
    assert min(compute.of(1, step) for step in range(30)) >= 1.0


def test_a_loss_is_a_delay_of_whole_retries() -> None:
    link = Link(latency=0.5, bandwidth=100)
    network = Network(between=link, loss=0.25, retry=3, seed=1)
    times = [network.message(0, 1, number, 50) for number in range(2000)]
    retries = [(seconds - 1.0) / 3 for seconds in times]
    assert all(count == int(count) >= 0 for count in retries)
    # Losses are geometric: 1 message in 4 is lost once, and 1 in 16 twice.
    assert sum(count > 0 for count in retries) / 2000 == pytest.approx(1 / 4, abs=0.03)
    assert sum(count > 1 for count in retries) / 2000 == pytest.approx(1 / 16, abs=0.02)
    again = Network(between=link, loss=0.25, retry=3, seed=1)
    assert times[::-1] == [again.message(0, 1, n, 50) for n in reversed(range(2000))]
    assert times != [again.message(1, 0, number, 50) for number in range(2000)]


def test_messages_take_the_link_between_their_ends() -> None:
    near, far = Link(latency=1, bandwidth=100), Link(latency=2, bandwidth=10)
    network = Network(inside=near, between=far, per_node=2)
    assert network.message(0, 1, number=0, nbytes=50) == 1.5
    assert network.message(1, 2, number=0, nbytes=50) == 7
    assert Network(between=far).message(0, 1, number=0, nbytes=50) == 7


def test_messages_vary_by_pair_direction_and_number() -> None:
    network = Network(spread=0.3, seed=2)
    of = [(0, 1, 0), (1, 0, 0), (0, 1, 1), (0, 2, 0)]
    times = [network.message(*pair, nbytes=8) for pair in of]
    assert len(set(times)) == len(of)
    assert times[0] == Network(spread=0.3, seed=2).message(0, 1, 0, nbytes=8)


def test_collectives_cost_what_a_ring_costs() -> None:
    near, far = Link(latency=1, bandwidth=100), Link(latency=2, bandwidth=10)
    network = Network(inside=near, between=far, per_node=4)
    assert network.all_reduce(range(1), 400) == 0
    assert network.all_reduce(range(4), 400) == 2 * 3 * (1 + 1)
    assert network.all_reduce(range(8), 400) == 2 * 7 * (2 + 5)
    assert network.broadcast(range(1), 400) == 0
    assert network.broadcast(range(4), 400) == 3 * 1 + 4
    assert network.broadcast(range(8), 400) == 7 * 2 + 40


@pytest.mark.parametrize(
    ("per_node", "ranks", "seconds"),
    [
        (2, [0], 0),
        (2, [0, 1], 0.5 + 1),  # inside a node
        (2, [0, 2], 5 + 2),  # of two nodes
        (1, [0, 1], 5 + 2),
        (4, [0, 1, 2], 2 * 0.5 + 1),  # their bytes one after another, not the latencies
        (1, [0, 1, 2], 2 * 5 + 2),
        (2, [0, 1, 2], 2 * 5 + 2),  # learner 2 has two far messages, the others one
        (4, [0, 1, 2, 3], 3 * 0.5 + 1),
        (2, [0, 1, 2, 3], 0.5 + 2 * 5 + 2),  # each: one near message, two far ones
        (3, [0, 1, 2, 3], 3 * 5 + 2),  # learner 3 has nobody near
    ],
)
def test_messages_between_all_pairs_take_the_links_between_their_ends(
    per_node: int, ranks: list[int], seconds: float
) -> None:
    near, far = Link(latency=1, bandwidth=100), Link(latency=2, bandwidth=10)
    network = Network(inside=near, between=far, per_node=per_node)
    assert network.all_pairs(ranks, 50) == seconds


def test_a_node_with_long_latency_may_be_the_last_to_hear() -> None:
    near, far = Link(latency=60, bandwidth=100), Link(latency=2, bandwidth=10)
    network = Network(inside=near, between=far, per_node=2)
    assert network.all_pairs(range(4), 50) == 0.5 + 60


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Compute, {"seconds": 0}, "seconds > 0, not 0"),
        (Compute, {"seconds": float("nan")}, "seconds > 0, not nan"),
        (Compute, {"spread": -1}, "spread of steps must be >= 0, not -1"),
        (Compute, {"slowdown": {3: 0}}, "slowdown of learner 3 must be > 0"),
        (Link, {"latency": -1}, "latency must be >= 0, not -1"),
        (Link, {"bandwidth": 0}, "bandwidth must be > 0, not 0"),
        (Network, {"per_node": 0}, "per_node must be >= 1, not 0"),
        (Compute, {"trace": [1.0, 0.0]}, "step 1 of the trace must take seconds > 0"),
        (Network, {"loss": 1}, r"loss must be in \[0, 1\), not 1"),
        (Network, {"loss": -0.1}, r"loss must be in \[0, 1\), not -0.1"),
        (Network, {"retry": -1}, "retry must be >= 0, not -1"),
        (Network, {"spread": -1}, "spread of messages must be >= 0, not -1"),
    ],
)
def test_bad_values(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kind(**options)
