"""A result is kept once, whole, and only as long as it says what the code does now."""

import json
from pathlib import Path

import pytest
from recipes.cell import Cell
from recipes.records import Records

from espnet_distopt.errors import InputError

CELL = Cell(
    recipe="fsdd",
    learners=4,
    algorithm="hadpsgd",
    options=(("per_node", 2), ("second_moment", "local")),
    seed=1,
)
OTHER = Cell(recipe="fsdd", learners=1, algorithm="none", batch_size=4, seed=0)


def version(cell: Cell) -> dict[str, str]:
    return {"settings": "a"}


def test_a_name_tells_all_that_a_cell_is() -> None:
    assert CELL.name == "fsdd/4/hadpsgd,per_node=2,second_moment=local/1"
    assert OTHER.name == "fsdd/1/none,batch_size=4/0"
    assert Cell.parse(json.loads(json.dumps(CELL.data()))) == CELL


def test_a_result_is_found_again(tmp_path: Path) -> None:
    Records(tmp_path, version).add(CELL, {"valid_loss": 0.5}, machine={"commit": "c"})
    again = Records(tmp_path, version)
    assert CELL in again
    assert OTHER not in again
    assert again[CELL]["result"] == {"valid_loss": 0.5}
    assert again[CELL]["machine"] == {"commit": "c"}


def test_a_result_of_another_version_is_not_used_but_kept(tmp_path: Path) -> None:
    Records(tmp_path, version).add(CELL, {"valid_loss": 0.5})
    changed = Records(tmp_path, lambda cell: {"settings": "b"})
    assert CELL not in changed
    changed.add(CELL, {"valid_loss": 0.4})
    assert Records(tmp_path, version)[CELL]["result"] == {"valid_loss": 0.5}
    assert len((tmp_path / "fsdd.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("lost", [1, 2, 30])
def test_a_line_that_a_kill_has_cut_counts_for_nothing(
    tmp_path: Path, lost: int
) -> None:
    records = Records(tmp_path, version)
    records.add(OTHER, {"valid_loss": 0.5})
    records.add(CELL, {"valid_loss": 0.4})
    path = tmp_path / "fsdd.jsonl"
    path.write_bytes(path.read_bytes()[:-lost])
    again = Records(tmp_path, version)
    assert OTHER in again
    assert CELL not in again
    again.add(CELL, {"valid_loss": 0.3})
    final = Records(tmp_path, version)
    assert final[CELL]["result"] == {"valid_loss": 0.3}
    assert final[OTHER]["result"] == {"valid_loss": 0.5}


def test_what_json_cannot_hold_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    records = Records(tmp_path, version)
    records.add(OTHER, {"valid_loss": 0.5})
    with pytest.raises(TypeError):
        records.add(CELL, {"valid_loss": object()})
    assert CELL not in records
    assert OTHER in Records(tmp_path, version)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    Records(tmp_path, version).add(CELL, {})
    path = tmp_path / "fsdd.jsonl"
    path.write_text(path.read_text() + '{"cell": 3}\n')
    with pytest.raises(InputError, match=r"fsdd\.jsonl:2: not the result of a cell"):
        Records(tmp_path, version)
