"""These tests check what messages and collectives cost alone against closed forms."""

from typing import Any

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.collective import (
    all_gather,
    all_pairs,
    all_reduce,
    broadcast,
    tree_all_reduce,
)
from espnet_distopt.simulation.network import Link, Network

NEAR, FAR = Link(latency=1, bandwidth=100), Link(latency=2, bandwidth=10)


def alone(network: Network, *message: int) -> float:
    return network.seconds(network.message(*message))


def test_a_loss_is_a_delay_of_whole_retries() -> None:
    link = Link(latency=0.5, bandwidth=100)
    network = Network(between=link, loss=0.25, retry=3, seed=1)
    times = [alone(network, 0, 1, number, 50) for number in range(2000)]
    retries = [(seconds - 1.0) / 3 for seconds in times]
    assert all(count == int(count) >= 0 for count in retries)
    # Losses are geometric: 1 message in 4 is lost once, and 1 in 16 twice.
    assert sum(count > 0 for count in retries) / 2000 == pytest.approx(1 / 4, abs=0.03)
    assert sum(count > 1 for count in retries) / 2000 == pytest.approx(1 / 16, abs=0.02)
    again = Network(between=link, loss=0.25, retry=3, seed=1)
    assert times[::-1] == [alone(again, 0, 1, n, 50) for n in reversed(range(2000))]
    assert times != [alone(again, 1, 0, number, 50) for number in range(2000)]


def test_messages_take_the_link_between_their_ends() -> None:
    network = Network(inside=NEAR, between=FAR, per_node=2)
    assert alone(network, 0, 1, 0, 50) == 1.5
    assert alone(network, 1, 2, 0, 50) == 7
    assert alone(Network(between=FAR), 0, 1, 0, 50) == 7


def test_messages_vary_by_pair_direction_and_number() -> None:
    network = Network(spread=0.3, seed=2)
    of = [(0, 1, 0), (1, 0, 0), (0, 1, 1), (0, 2, 0)]
    times = [alone(network, *pair, 8) for pair in of]
    assert len(set(times)) == len(of)
    assert times[0] == alone(Network(spread=0.3, seed=2), 0, 1, 0, 8)


@pytest.mark.parametrize(
    ("shared", "seconds"),
    [
        ({}, 5 + 2),
        ({"card": 5.0}, 10 + 2),
        ({"bus": 1.0}, 5 + 2),  # It is inside the node, and the message is not.
        ({"memory": 5.0}, 20 + 2),  # It is written and read on each node.
        ({"switch": 2.5}, 20 + 2),
    ],
)
def test_a_message_between_nodes_is_as_slow_as_the_slowest_it_passes(
    shared: dict[str, float], seconds: float
) -> None:
    network = Network(inside=NEAR, between=FAR, per_node=2, **shared)  # type: ignore[arg-type]
    assert alone(network, 0, 2, 0, 50) == seconds


@pytest.mark.parametrize(
    ("shared", "seconds"), [({"bus": 25.0}, 2 + 1), ({"memory": 25.0}, 4 + 1)]
)
def test_a_message_inside_a_node_passes_its_bus_and_memory(
    shared: dict[str, float], seconds: float
) -> None:
    network = Network(inside=NEAR, between=FAR, per_node=2, **shared)  # type: ignore[arg-type]
    assert alone(network, 0, 1, 0, 50) == seconds


def test_messages_of_a_larger_model_take_longer_on_everything() -> None:
    shared = {"card": 8.0, "bus": 30.0, "memory": 50.0, "switch": 12.0}
    network = Network(inside=NEAR, between=FAR, per_node=2, **shared)  # type: ignore[arg-type]
    larger = network.for_larger_messages(7)
    for receiver in (1, 2):
        traffic = network.traffic([(0, receiver, 70.0)])
        for resource in traffic.load:
            assert network.capacity(resource) / larger.capacity(resource) == 7
        assert larger.traffic([(0, receiver, 10.0)]).latency == traffic.latency


def test_means_and_broadcasts_cost_what_a_ring_costs() -> None:
    network = Network(inside=NEAR, between=FAR, per_node=4)
    seconds = network.seconds
    assert seconds(all_reduce(network, range(4), 400)) == 2 * 3 * (1 + 1)
    assert seconds(all_reduce(network, range(8), 400)) == 2 * 7 * (2 + 5)
    assert seconds(broadcast(network, range(4), 400)) == 3 * 1 + 4
    assert seconds(broadcast(network, range(8), 400)) == 7 * 2 + 40


def test_one_message_of_a_ring_passes_each_card_and_all_of_a_node_its_bus() -> None:
    network = Network(inside=NEAR, between=FAR, per_node=4, card=8, bus=20)
    load = all_reduce(network, range(8), 400).load
    share = 2 * 7 * 400 / 8
    assert {load["card sends", node] for node in (0, 1)} == {share}
    assert {load["card receives", node] for node in (0, 1)} == {share}
    assert {load["bus", node] for node in (0, 1)} == {3 * share}


def test_an_all_gather_passes_each_row_once_through_a_card() -> None:
    network = Network(inside=NEAR, between=FAR, per_node=4, card=8)
    assert network.seconds(all_gather(network, range(4), 50)) == 3 * 0.5 + 1
    assert network.seconds(all_gather(network, range(8), 50)) == 7 * 50 / 8 + 2
    load = all_gather(network, range(8), 50).load
    assert {load["card sends", node] for node in (0, 1)} == {7 * 50}
    assert all_pairs(network, range(8), 50).load["card sends", 0] == 16 * 50


@pytest.mark.parametrize(("nodes", "most"), [(2, 1.0), (4, 1.5), (8, 2.0)])
def test_a_tree_sends_at_most_twice_the_bytes_through_a_card(
    nodes: int, most: float
) -> None:
    """Two nodes send the bytes once each way, which is less than a ring's 2 (N-1)/N."""
    network = Network(inside=NEAR, between=FAR, per_node=4, card=8)
    load = tree_all_reduce(network, range(4 * nodes), 400).load
    cards = [load["card sends", node] for node in range(nodes)]
    assert max(cards) == most * 400
    assert sum(cards) == 2 * (nodes - 1) * 400


@pytest.mark.parametrize(
    ("per_node", "ranks", "seconds"),
    [
        (2, [0, 1], 0.5 + 1),  # inside a node
        (2, [0, 2], 5 + 2),  # of two nodes
        (1, [0, 1], 5 + 2),
        (4, [0, 1, 2], 2 * 0.5 + 1),  # their bytes share a link
        (1, [0, 1, 2], 2 * 5 + 2),
        (2, [0, 1, 2], 2 * 5 + 2),  # learner 2 has two far messages, the others one
        (4, [0, 1, 2, 3], 3 * 0.5 + 1),
        (2, [0, 1, 2, 3], 2 * 5 + 2),  # the near message passes another link meanwhile
        (3, [0, 1, 2, 3], 3 * 5 + 2),  # learner 3 has nobody near
    ],
)
def test_messages_between_all_pairs_take_the_links_between_their_ends(
    per_node: int, ranks: list[int], seconds: float
) -> None:
    network = Network(inside=NEAR, between=FAR, per_node=per_node)
    assert network.seconds(all_pairs(network, ranks, 50)) == seconds


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Link, {"latency": -1}, "latency must be >= 0, not -1"),
        (Link, {"bandwidth": 0}, "bandwidth must be > 0, not 0"),
        (Network, {"per_node": 0}, "per_node must be >= 1, not 0"),
        (Network, {"card": 0}, "card must be > 0, not 0"),
        (Network, {"bus": -1}, "bus must be > 0, not -1"),
        (Network, {"memory": float("nan")}, "memory must be > 0, not nan"),
        (Network, {"switch": 0}, "switch must be > 0, not 0"),
        (Network, {"loss": 1}, r"loss must be in \[0, 1\), not 1"),
        (Network, {"loss": -0.1}, r"loss must be in \[0, 1\), not -0.1"),
        (Network, {"retry": -1}, "retry must be >= 0, not -1"),
        (Network, {"spread": -1}, "spread of messages must be >= 0, not -1"),
    ],
)
def test_bad_values(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kind(**options)
