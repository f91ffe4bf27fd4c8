"""These tests check the clock and the model of steps against closed forms."""

from collections.abc import Callable
from typing import Any

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.compute import Compute


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seconds": 0}, "seconds > 0, not 0"),
        ({"seconds": float("nan")}, "seconds > 0, not nan"),
        ({"spread": -1}, "spread of steps must be >= 0, not -1"),
        ({"slowdown": {3: 0}}, "slowdown of learner 3 must be > 0"),
        ({"trace": [1.0, 0.0]}, "step 1 of the trace must take seconds > 0"),
    ],
)
def test_bad_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Compute(**options)
