"""The command runs each cell once, in order, and survives being stopped."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trainings
from recipes.cell import Cell
from recipes.plan import plan
from recipes.records import Records
from recipes.training import CellFailedError

CELLS = [
    Cell(recipe="fsdd", learners=4, algorithm=name, seed=seed)
    for seed in range(2)
    for name in ("allreduce", "adpsgd")
]
FIGURES = {"valid_loss": 0.5, "wer": {"known": 1.0, "unseen": 2.0, "all": 1.5}}


def version(cell: Cell) -> dict[str, str]:
    return {"settings": "a"}


class Trainer:
    """Stands in for trainings, and remembers them; some do not come to their end."""

    def __init__(self, ends: dict[str, BaseException] | None = None) -> None:
        self.asked: list[str] = []
        self._ends = ends or {}

    def __call__(self, cell: Cell) -> dict[str, Any]:
        self.asked.append(cell.name)
        if cell.name in self._ends:
            raise self._ends[cell.name]
        return FIGURES


def test_a_stopped_run_goes_on_with_the_cell_that_was_running(tmp_path: Path) -> None:
    stopped = Trainer({CELLS[2].name: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        trainings.run_cells(CELLS, Records(tmp_path, version), stopped)
    again = Trainer()
    trainings.run_cells(CELLS, Records(tmp_path, version), again)
    assert again.asked == [cell.name for cell in CELLS[2:]]
    nothing = Trainer()
    trainings.run_cells(CELLS, Records(tmp_path, version), nothing)
    assert nothing.asked == []
    assert len((tmp_path / "fsdd.jsonl").read_text().splitlines()) == len(CELLS)


def test_a_failed_cell_has_no_result_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer({CELLS[1].name: CellFailedError("learner 2 has died")})
    records = Records(tmp_path, version)
    assert trainings.run_cells(CELLS, records, trainer) == [CELLS[1].name]
    assert [cell in records for cell in CELLS] == [True, False, True, True]
    assert f"{CELLS[1].name} failed: learner 2 has died\n" in capsys.readouterr().err


def test_a_result_says_where_it_comes_from(tmp_path: Path) -> None:
    trainings.run_cells(CELLS[:1], Records(tmp_path, version), Trainer())
    record = json.loads((tmp_path / "fsdd.jsonl").read_text())
    assert record["machine"]["commit"]
    assert record["machine"]["torch"]
    assert record["version"] == {"settings": "a"}


def test_no_cell_begins_that_would_not_end_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(trainings.time, "monotonic", lambda: now[0])

    def train(cell: Cell) -> dict[str, Any]:
        now[0] += 60.0
        return FIGURES

    records = Records(tmp_path, version)
    assert trainings.run_cells(CELLS, records, train, budget=2.5) == []
    assert [cell in records for cell in CELLS] == [True, True, False, False]


def test_cells_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = trainings.chosen(plan(), "^fsdd/4/allreduce/")
    assert [cell.seed for cell in found] == [0, 1, 2, 3, 4]
    for wrong in ("nonsense", "("):
        with pytest.raises(SystemExit):
            trainings.main(["--list", "--only", wrong])
        assert capsys.readouterr().err.startswith(f"error: --only {wrong}: no ")


def test_names_are_unique() -> None:
    names = [cell.name for cell in plan()]
    assert len(set(names)) == len(names)


def test_the_list_and_the_report_show_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--only", "^fsdd/4/allreduce/", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        trainings.main(["--report", *asked])
    assert "no cell has a result yet" in capsys.readouterr().err
    done = trainings.chosen(plan(), "^fsdd/4/allreduce/")[:2]
    trainings.run_cells(done, Records(tmp_path, trainings.version), Trainer())
    capsys.readouterr()
    trainings.main(["--list", *asked])
    listed = capsys.readouterr().out.splitlines()
    assert [line.startswith("done") for line in listed] == [True] * 2 + [False] * 3
    trainings.main(["--report", *asked])
    text = (tmp_path / "trainings_fsdd.md").read_text()
    assert "| allreduce | 4 | 2 | 0.500 |" in text
    assert "Seeds: 0, 1." in text


def test_one_run_at_a_time(tmp_path: Path) -> None:
    # A lock belongs to a process, so another one has to try.
    lock = tmp_path / "build/lock"
    code = f"""
import sys; sys.path.insert(0, {str(Path(trainings.__file__).parent)!r})
import trainings
with trainings.only_run(trainings.Path({str(lock)!r})):
    print("in")
"""
    command = [sys.executable, "-c", code]
    with trainings.only_run(lock):
        held = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another run trains" in held.stderr
    free = subprocess.run(command, capture_output=True, text=True, check=False)
    assert free.stdout == "in\n"
