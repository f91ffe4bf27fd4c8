"""These tests check how messages share what they pass, against times by hand."""

from collections.abc import Callable, Hashable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.wire import Flow, Flows, max_min

CAPACITY = {"a": 10.0, "b": 4.0, "c": 100.0}


def ends(flows: Mapping[str, tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the second at which each flow ends that begins at a second with a load."""
    clock, ended = Clock(), dict[str, float]()
    shared = Flows(clock, lambda name: CAPACITY[str(name)])

    def note(name: str) -> Callable[[], None]:
        return lambda: ended.update({name: clock.now / 1e9})

    for name, (second, load) in flows.items():
        clock.at(
            round(second * 1e9),
            lambda name=name, load=load: shared.begin(load, note(name)),  # type: ignore[misc]
        )
    while clock.tick():
        pass
    return ended


def test_a_flow_alone_is_as_fast_as_the_slowest_it_passes() -> None:
    assert ends({"x": (1, {"a": 20, "c": 20})}) == {"x": 3}
    assert ends({"x": (1, {"a": 20, "b": 20})}) == {"x": 6}
    assert ends({"x": (2, {})}) == {"x": 2}


def test_two_flows_share_and_the_second_goes_on_alone() -> None:
    both = ends({"x": (0, {"a": 20}), "y": (0, {"a": 60})})
    assert both == {"x": 4, "y": 8}  # 5 a second each, then 10


def test_a_flow_that_comes_later_slows_the_first_one() -> None:
    both = ends({"x": (0, {"a": 20}), "y": (1, {"a": 20})})
    assert both == {"x": 3, "y": 4}


def test_who_is_limited_elsewhere_leaves_its_share_to_the_others() -> None:
    """Flow x gets the 4 a second of b, and y the 6 that are left of a."""
    assert ends({"x": (0, {"a": 8, "b": 8}), "y": (0, {"a": 12})}) == {"x": 2, "y": 2}


def test_a_collective_loads_what_it_passes_more_than_once() -> None:
    """It goes on at 5 a second, because each byte of it passes a twice."""
    assert ends({"x": (0, {"a": 40, "c": 20})}) == {"x": 4}
    # Both have the same pace where they meet.
    assert ends({"x": (0, {"a": 40}), "y": (0, {"a": 20})}) == {"x": 6, "y": 4}


def test_flows_that_share_nothing_do_not_notice_each_other() -> None:
    loads = {"x": (0.0, {"a": 20.0}), "y": (0.5, {"b": 8.0}), "z": (1.0, {"c": 50.0})}
    assert ends(loads) == {"x": 2, "y": 2.5, "z": 1.5}


LOADS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.floats(1, 50), min_size=1),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(LOADS)
def test_no_rate_can_grow_but_at_the_cost_of_one_that_is_as_low(
    loads: list[dict[str, float]],
) -> None:
    flows = [Flow(dict(load.items()), 0, lambda: None) for load in loads]
    rates = max_min(flows, lambda name: CAPACITY[str(name)])
    used: dict[Hashable, float] = {
        name: sum(rates[flow] * flow.weights.get(name, 0) for flow in flows)
        for name in CAPACITY
    }
    for name, capacity in CAPACITY.items():
        assert used[name] <= capacity * (1 + 1e-9)
    for flow in flows:
        assert any(
            used[name] == pytest.approx(CAPACITY[str(name)])
            and all(
                rates[other] <= rates[flow] * (1 + 1e-9)
                for other in flows
                if name in other.weights
            )
            for name in flow.weights
        )
