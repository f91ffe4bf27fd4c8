"""A row is compared with all-reduce of as many learners, seed by seed."""

from pathlib import Path

from recipes.cell import Cell
from recipes.recipe import RECIPES
from recipes.records import Records
from recipes.tables import rows, summary, table


def cell(algorithm: str, seed: int, learners: int = 4) -> Cell:
    return Cell(recipe="fsdd", learners=learners, algorithm=algorithm, seed=seed)


def result(loss: float, wer: float) -> dict:
    rates = {"known": wer, "unseen": 2 * wer, "all": wer}
    return {"valid_loss": loss, "wer": rates, "cpu_seconds": 100.0}


def test_rows_are_paired_by_learners_and_seed(tmp_path: Path) -> None:
    records = Records(tmp_path, lambda cell: {})
    for seed in range(3):
        records.add(cell("allreduce", seed), result(1.0 + seed, 3.0))
        records.add(cell("adpsgd", seed), result(1.5 + seed, 4.0))
        records.add(cell("none", seed, 1), result(1.0 + seed, 2.0))
    records.add(cell("allreduce", 0, 2), result(9.0, 9.0))
    asked = [
        cell(name, seed, learners)
        for name, learners in [
            ("allreduce", 4),
            ("adpsgd", 4),
            ("none", 1),
            ("allreduce", 2),
            ("bmuf_adam", 4),
        ]
        for seed in range(3)
    ]
    found = rows(asked, records)
    lines = table(RECIPES["fsdd"], found)
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| allreduce | 4 | 3 | 2.000 |  |  | 3.0 |  |")
    assert lines[3].startswith("| adpsgd | 4 | 3 | 2.500 | +0.500 (+0.500 to +0.500) ")
    assert "| 0 % | 4.0 | +1.0 (+1.0 to +1.0) | 8.0 |" in lines[3]
    assert (
        "| none | 1 | 3 | 2.000 | +0.000 (+0.000 to +0.000) | 0 % | 2.0 | -1.0"
        in (lines[4])
    )
    assert lines[5].startswith("| allreduce | 2 | 1 | 9.000 |  |  | 9.0 |  |")


def test_a_training_without_a_loss_is_left_out_of_the_mean(tmp_path: Path) -> None:
    records = Records(tmp_path, lambda cell: {})
    cells = [cell("allreduce", 0), cell("allreduce", 1)]
    records.add(cells[0], result(1.0, 3.0))
    records.add(cells[1], result(1.0, 3.0) | {"valid_loss": None})
    [row] = rows(cells, records)
    assert row.figures("valid_loss") == {0: 1.0}
    assert row.figures("wer", "unseen") == {0: 6.0, 1: 6.0}


def test_the_summary_marks_what_is_behind(tmp_path: Path) -> None:
    records = Records(tmp_path, lambda cell: {})
    for seed in range(3):
        records.add(cell("allreduce", seed), result(1.0, 10.0))
        records.add(cell("adpsgd", seed), result(1.0, 10.9))
    records.add(cell("bmuf", 1), result(1.0, 11.2))
    records.add(cell("bmuf", 0, 2), result(1.0, 50.0))
    order = ["allreduce", "adpsgd", "bmuf_adam", "bmuf"]
    asked = [
        cell(name, seed, learners)
        for learners in (2, 4)
        for name in ("allreduce", "adpsgd", "bmuf")
        for seed in range(3)
    ]
    assert summary({"fsdd": rows(asked, records)}, order) == [
        "| method | strings, 2 learners | strings, 4 learners |",
        "| :-- | --: | --: |",
        "| allreduce |  | 10.0 |",
        "| adpsgd |  | 10.9 |",
        "| bmuf | 50.0 (1) | **11.2 (1)** |",
    ]
