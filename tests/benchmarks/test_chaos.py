"""The figures of a tormented training, from notes that were made up."""

import json
from pathlib import Path
from typing import Any

import pytest
from faults.figures import Notes, summary, table


def write(directory: Path, name: str, events: list[Any]) -> None:
    (directory / name).write_text("".join(json.dumps(e) + "\n" for e in events))


def steps(first: float, last: float, items: list[int], epoch: int = 0) -> list[Any]:
    """One step a second, each of which trains on the next item."""
    times = range(round(first), round(last) + 1)
    return [["step", float(t), epoch, i] for t, i in zip(times, items, strict=True)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Four learners; learner 1 is killed at 20.5, and its replacement steps from 30.

    They are calm from 10 to 20 and from 40 to 50. The dead one had begun item 1020.
    """
    settings = {"learners": 4, "items": 197}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    for rank in (0, 2, 3):
        own = steps(0, 50, list(range(100 * rank, 100 * rank + 51)))
        exchanges = [["exchange", 21.5, 3]] if rank == 0 else []
        exchanges += [["exchange", 21.5, 0], ["exchange", 22.5, 2]] * (rank == 3)
        exchanges += [["exchange", 22.5, 3]] * (rank == 2)
        end = [["consensus", 50.5, 0, 0.25, 0.0], ["ended", 51.0]]
        write(
            tmp_path, f"{rank}.0.jsonl", [["process", -1.0, 7], *own, *exchanges, *end]
        )
    own = [["process", -1.0, 7], *steps(0, 20, list(range(1000, 1021)))]
    write(tmp_path, "1.0.jsonl", own)
    late = steps(30, 50, list(range(1021, 1042)))
    write(tmp_path, "1.1.jsonl", [["process", 25.0, 8], *late])
    death = {"kind": "kill", "rank": 1, "incarnation": 0, "stepped": True}
    done: list[dict[str, Any]] = [
        {"event": "calm begins", "time": 10.0},
        {"event": "calm ends", "time": 20.0},
        {"event": "torment begins", "time": 20.0},
        {"event": "death", "time": 20.5, **death},
        {"event": "torment ends", "time": 40.0},
        {"event": "calm begins", "time": 40.0},
        {"event": "calm ends", "time": 50.0},
        {"event": "end", "time": 51.0, "status": 0},
    ]
    write(tmp_path, "faults.jsonl", done)
    return tmp_path


def test_goodput_does_not_count_the_dead_as_capacity(directory: Path) -> None:
    """60 batches of three, and 1 + 9 of learner 1, which lived for 10.5 seconds."""
    figures = summary(Notes(directory))
    assert figures["calm_stretches"] == pytest.approx([1.0, 1.0], rel=0.03)
    assert figures["living"] == pytest.approx(60 + 0.5 + 10, abs=0.6)
    assert figures["goodput"] == pytest.approx(1.0, abs=0.03)
    assert figures["goodput_least"] <= figures["goodput"]
    assert figures["goodput_of_places"] == pytest.approx(70 / 80, abs=0.03)


def test_a_survivor_that_waits_costs_goodput(directory: Path) -> None:
    own = [["process", -1.0, 7], *steps(0, 25, list(range(200, 226)))]
    own += steps(36, 50, list(range(226, 241)))
    write(directory, "2.0.jsonl", own)
    figures = summary(Notes(directory))
    assert figures["goodput"] == pytest.approx(60 / 70, abs=0.03)
    assert figures["pause"]["max"] == pytest.approx(11.0)


def test_wounds(directory: Path) -> None:
    """The ring without learner 1 is 0, 2, 3: an edge from 2 to 0 would cross it."""
    figures = summary(Notes(directory))
    assert figures["unhealed"] == 1
    assert figures["away"]["max"] == pytest.approx(9.5)
    file = directory / "0.0.jsonl"
    file.write_text(file.read_text() + '["exchange", 23.0, 2]\n')
    two = directory / "2.0.jsonl"
    two.write_text(two.read_text() + '["exchange", 23.0, 0]\n')
    figures = summary(Notes(directory))
    assert figures["heal"]["max"] == pytest.approx(2.5)
    assert figures["broken"] == []


def test_lost_and_repeated_batches(directory: Path) -> None:
    figures = summary(Notes(directory))
    assert figures["batches"] == {
        "epochs": 1,
        "dealt": 197,
        "trained": 195,
        "lost": 2,
        "repeated": 0,
    }
    late = [["process", 25.0, 8], *steps(30, 50, list(range(1020, 1041)))]
    write(directory, "1.1.jsonl", late)
    assert summary(Notes(directory))["batches"]["repeated"] == 1


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ('["broken", 30.0, "a parameter is not finite"]', "not finite"),
        ('["consensus", 50.6, 0, 0.26, 0.0]', "consensus models"),
        ('["exchange", 40.0, 2]\n["exchange", 41.0, 2]', "exchanges with each other"),
        ('["epoch", 0.0, 0]\n["epoch", 1.0, 2]', "has trained in epochs"),
    ],
)
def test_broken_invariants_are_named(directory: Path, event: str, what: str) -> None:
    assert summary(Notes(directory))["broken"] == []
    file = directory / "0.0.jsonl"
    file.write_text(file.read_text() + event + "\n")
    (broken,) = summary(Notes(directory))["broken"]
    assert what in broken


def test_a_table_has_a_line_for_each_case(directory: Path) -> None:
    figures = summary(Notes(directory))
    rows = [
        {"case": "kills", "learners": 4, "figures": figures},
        {"case": "undisturbed", "figures": {"final_loss": 0.2, "epochs": 1}},
    ]
    lines = table(rows)
    assert "1 x kill" in lines[2] and "0.25000 (1 epochs)" in lines[2]
    assert any("0.20000" in line for line in lines)
