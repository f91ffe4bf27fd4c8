"""What the figures of `benchmarks/healing.py` count, from events made by hand."""

from pathlib import Path
from typing import Any

import pytest
from healing import of_ending, of_joining, of_survival, of_waking
from survival.run import Events, Outcome, Settings

BLOW = 100.0
SETTINGS = Settings(learners=3, victim=1, epochs=1)


def at(event: str, seconds: float, **values: Any) -> dict[str, Any]:
    return {"event": event, "at": BLOW + seconds, "processor": 0.0, **values}


def steps(*ends: float) -> list[dict[str, Any]]:
    return [at("step", end, epoch=0, item=n) for n, end in enumerate(ends)]


def survivor(peer: int, *ends: float) -> list[dict[str, Any]]:
    return [
        *steps(*ends),
        at("line", 0.6, text="learner 1 has died: its process is gone; 2 of 3 go on"),
        at("exchange", 0.2, began=BLOW - 0.1, peer=peer),
        at("exchange", 0.9, began=BLOW + 0.7, peer=peer),
        at("epoch", 9, epoch=0, members=[0, 2]),
        at("end", 9),
    ]


def outcome(settings: Settings = SETTINGS, **found: list[dict[str, Any]]) -> Outcome:
    names = {name.replace("_", ".").strip("."): each for name, each in found.items()}
    return Outcome(settings, BLOW, BLOW + 15, 0, Events(names), "")


def test_the_longest_step_is_the_one_that_the_blow_has_met() -> None:
    found = of_survival(
        outcome(
            _0_0=survivor(2, -3.0, -2.0, -0.5, 1.0, 1.2),
            _1_0=steps(-9.0, -0.1),
            _2_0=survivor(0, -2.0, -1.5, 0.5, 1.0),
        )
    )
    assert found["before"] == pytest.approx(1.5)
    assert found["longest"] == pytest.approx(2.0), "of learner 2, begun before"
    assert found["noticed"] == pytest.approx(0.6)
    assert found["gap"] == pytest.approx(0.9), "the one under way does not count"
    assert found["ended"]


def test_a_survivor_that_has_not_ended_is_seen() -> None:
    whole, short = survivor(2, -1.0, 1.0), survivor(0, -1.0, -0.5, 1.0)[:-1]
    found = of_survival(outcome(_0_0=[*steps(-2.0), *whole], _2_0=short))
    assert not found["ended"]


def test_an_exchange_with_one_that_was_woken_is_counted_on_either_side() -> None:
    stopped = [at("error", 16, text="given up")]
    other = [at("exchange", 16, began=BLOW, peer=1)]
    found = of_waking(outcome(_0_0=other, _1_0=stopped, _2_0=[]))
    assert (found["told"], found["averaged"]) == (pytest.approx(1), 1)


def test_an_end_without_the_name_of_the_dead_is_seen() -> None:
    good = [at("error", 0.5, text="an all-reduce has failed: learner 1 has died: gone")]
    bad = [at("error", 3, text="nobody is silent")]
    assert of_ending(outcome(_0_0=good, _2_0=good))["named"]
    found = of_ending(outcome(_0_0=good, _2_0=bad))
    assert (found["named"], found["ended"]) == (False, pytest.approx(3))


def test_a_replacement_counts_from_when_it_is_reachable() -> None:
    new = [at("reachable", 10), at("session", 12), *steps(15), *steps(16)]
    new += [at("exchange", 14, began=BLOW + 13, peer=0)]
    others = {"_0_0": steps(1.0, 2.0, 3.0, 13.5), "_2_0": steps(1.0, 3.0, 5.0, 11.0)}
    found = of_joining(outcome(_1_1=new, **others))
    assert found["member"] == pytest.approx(2)
    assert found["exchange"] == pytest.approx(4)
    assert found["longest"] == pytest.approx([10.5, 3.0])


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    file, events = tmp_path / "1.0.jsonl", Events()
    for text, count in (("", 0), ('{"at": 1}\n{"a', 1), ('{"at": 1}\n{"at": 2}\n', 2)):
        file.write_text(text)
        assert len(events.read(tmp_path).found["1.0"]) == count
