"""Results of cells are kept as they come, and are not computed twice."""

import json
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import report
from convergence import sweep
from convergence.sweep import Sweep


@dataclass(frozen=True)
class Square:
    x: int

    def key(self) -> dict[str, Any]:
        return {"x": self.x}


asked: list[int] = []


def compute(cells: list[Square]) -> list[dict[str, Any]]:
    asked.extend(cell.x for cell in cells)
    return [{"y": cell.x**2} for cell in cells]


def one_by_one(cells: list[Square]) -> list[list[Square]]:
    return [[cell] for cell in cells]


class Inline:
    """Stands in for the pool: it computes at once, in this process."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Any, cell: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(cell))
        return future

    def shutdown(self, **_: object) -> None: ...


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ProcessPoolExecutor", Inline)
    asked.clear()


def cells(*numbers: int) -> list[Square]:
    return [Square(x) for x in numbers]


def test_each_cell_is_computed_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.jsonl"
    first = Sweep(path, compute, 1, one_by_one)
    assert first.get(Square(2)) is None
    assert first.run(cells(1, 2, 1))
    assert asked == [1, 2]
    second = Sweep(path, compute, 2, one_by_one)
    assert second.run(cells(2, 3))
    assert asked == [1, 2, 3]
    assert second.get(Square(2)) == {"y": 4}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["cell"] for line in lines] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert lines[0]["machine"] == report.machine() == second.where(Square(1))


def test_a_budget_stops_between_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    path = tmp_path / "x.jsonl"
    assert not Sweep(path, compute, 1, one_by_one).run(cells(1, 2, 3, 4, 5), until=6)
    assert 0 < len(asked) < 5
    assert len(path.read_text().splitlines()) == len(asked)
    assert Sweep(path, compute, 1, one_by_one).run(cells(1, 2, 3, 4, 5))
    assert asked == [1, 2, 3, 4, 5]


def test_a_budget_that_is_spent_begins_nothing(tmp_path: Path) -> None:
    found = Sweep(tmp_path / "x.jsonl", compute, 1, one_by_one)
    assert not found.run(cells(1), until=0)
    assert not asked
    assert found.run([], until=0)


def test_a_line_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    Sweep(path, compute, 1, one_by_one).run(cells(1, 2))
    path.write_text(path.read_text()[:-5])
    found = Sweep(path, compute, 1, one_by_one)
    assert found.get(Square(1)) and found.get(Square(2)) is None
    found.run(cells(2))
    lines = [json.loads(line)["cell"]["x"] for line in path.read_text().splitlines()]
    assert lines == [1, 2]
