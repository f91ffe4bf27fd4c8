"""The figures of a tormented training, from events that were made up."""

from typing import Any

import pytest
from chaos import Blow, broken, dealt, lives, pauses, speed
from survival.run import Events

KILL = Blow(name="1.0", at=20.5)
TORMENT, CALM = (20.0, 40.0), [(10.0, 20.0), (40.0, 50.0)]


def steps(first: int, last: int, items: int) -> list[dict[str, Any]]:
    """One step a second, each of which trains on the next item."""
    return [
        {"event": "step", "at": float(at), "epoch": 0, "item": items + number}
        for number, at in enumerate(range(first, last + 1))
    ]


@pytest.fixture
def events() -> Events:
    """Four learners; learner 1 is killed at 20.5, and its replacement steps from 30.

    The dead one had begun item 1020, which nobody trains on again.
    """
    found = {
        f"{rank}.0": [
            *steps(0, 50, 100 * rank),
            {"event": "epoch", "at": 50.5, "epoch": 0, "norm": 0.25},
        ]
        for rank in (0, 2, 3)
    }
    found["1.0"] = steps(0, 19, 1000)
    found["1.1"] = steps(30, 50, 1021)
    return Events(found)


def exchange(peer: int) -> dict[str, Any]:
    return {"event": "exchange", "at": 45.0, "peer": peer}


def test_goodput_does_not_count_the_dead_as_capacity(events: Events) -> None:
    """60 batches of three, and 9 of learner 1, which lived for 10 seconds."""
    for span in CALM:
        batches, seconds = speed(events, [KILL], span)
        assert batches / seconds == pytest.approx(1.0, rel=0.03)
    batches, seconds = speed(events, [KILL], TORMENT)
    assert batches == 60 + 9
    assert seconds == pytest.approx(60 + 10)


def test_a_survivor_that_waits_costs_goodput(events: Events) -> None:
    events.found["2.0"] = [*steps(0, 25, 200), *steps(36, 50, 226)]
    batches, seconds = speed(events, [KILL], TORMENT)
    assert batches / seconds == pytest.approx(59 / 70)
    assert list(pauses(events, [KILL])) == [pytest.approx(11.0)]


def test_one_that_is_stopped_does_not_live_until_it_goes_on(events: Events) -> None:
    stop = Blow(name="2.0", at=25.5, until=35.0)
    assert lives(events, [stop], "2.0") == [(0.0, 25.5), (35.0, 50.5)]
    assert list(pauses(events, [stop])) == [pytest.approx(1.0)], "of others alone"


def test_lost_and_repeated_batches(events: Events) -> None:
    trained = 3 * 51 + 20 + 21
    assert dealt(events, trained + 1) == {
        "dealt": trained + 1,
        "lost": 1,
        "repeated": 0,
    }
    events.found["1.1"] = steps(30, 50, 1019)
    assert dealt(events, trained)["repeated"] == 1


def test_broken_invariants_are_named(events: Events) -> None:
    assert broken(events, [KILL]) == []
    events.found["2.0"][-1]["norm"] = 0.26
    (found,) = broken(events, [KILL])
    assert "consensus models" in found
    events.found["2.0"][-1]["norm"] = 0.25
    events.found["0.0"].append(exchange(1))
    assert broken(events, [KILL]) == [], "the dead one may not have noted it"
    events.found["0.0"].append(exchange(2))
    (found,) = broken(events, [KILL])
    assert "unequal exchanges" in found
