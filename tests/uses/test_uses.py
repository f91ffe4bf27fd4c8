"""These tests run every cell of the table in real processes."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from espnet_distopt.algorithms import ALGORITHMS
from tests.fork_server import PRELOAD
from tests.processes import launch
from tests.uses.columns import ALL, Column
from tests.uses.oracle import faults
from tests.uses.run import Outcome, attempt, attempt_all, plain
from tests.uses.table import ROWS, page
from tests.uses.use import COLUMNS, STEPS, Use

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what_works.md"
LEARNERS = 2
KNOWN = [row for row in ROWS if row.known]
FAMILIES = ("allreduce", "adpsgd", "dpsgd", "d1d_model", "bmuf_adam", "adasum")
"""One algorithm of each family; `make thorough` has all columns."""
PRELOAD.append("tests.uses.preloaded")


def run_column(column: Column) -> tuple[list[Outcome], list[str]]:
    """Run a column as one learner; return its outcomes, and its faults when alone."""
    warnings.simplefilter("ignore")
    rank, size = dist.get_rank(), dist.get_world_size()
    outcomes = attempt_all(KNOWN, column, rank, size)
    dist.destroy_process_group()
    return outcomes, [f for row in KNOWN[rank::size] for f in alone(column, row)]


def alone(column: Column, row: type[Use]) -> list[str]:
    """Return what differs between one learner and the plain loop."""
    if column.algorithm in row.refused or column.steps_alone or not row.exact_alone:
        return []
    outcome = attempt(row, column, 0, 1)
    where = f"{row.__name__}, alone"
    if outcome.end != "right":
        return [f"{where}: {outcome.text}"]
    pairs = zip(outcome.records, plain(row), strict=True)
    same = all(np.array_equal(r.own, p) for r, p in pairs)
    return [] if same else [f"{where}: not the plain loop"]


def cell_faults(column: Column, row: type[Use], outcomes: list[Outcome]) -> list[str]:
    """Return how a cell differs from what the table says."""
    ends, pattern = [o.end for o in outcomes], row.refused.get(column.algorithm)
    texts = [o.text for o in outcomes]
    if pattern is not None:
        told = [o.text for o in outcomes if o.end == "refused"]
        allowed = {"refused"} if row.everybody else {"refused", "lost"}
        good = told and set(ends) <= allowed
        if good and all(re.search(pattern, t) and "\n" not in t for t in told):
            return []
        return [f"to be refused with {pattern!r}, but {ends}: {texts}"]
    if ends != ["right"] * len(outcomes):
        return [f"to be right, but {ends}: {texts}"]
    found = []
    for learners in zip(*(o.records for o in outcomes), strict=True):
        found += faults(column, row, list(learners))
        steps = len(learners[0].before) if len(learners[0].before) < STEPS else STEPS
        expected = steps - row(0).skipped(column.algorithm)
        made = [record.updates for record in learners]
        if made != [expected] * len(made):
            found.append(f"{made} updates counted, not {expected}")
    return found


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(
            column,
            id=column.algorithm,
            marks=() if column.algorithm in FAMILIES else pytest.mark.thorough,
        )
        for column in ALL
    ],
)
def test_a_column_is_what_the_table_says(column: Column) -> None:
    learners = launch(LEARNERS, run_column, column, timeout=120)
    wrong = [fault for _, found in learners for fault in found]
    for row, outcomes in zip(
        KNOWN, zip(*(o for o, _ in learners), strict=True), strict=True
    ):
        found = cell_faults(column, row, list(outcomes))
        wrong += [f"{row.__name__}: {fault}" for fault in found]
    assert not wrong, f"{column.algorithm}:\n" + "\n".join(wrong)


def test_every_row_is_run() -> None:
    if unknown := [row.title for row in ROWS if not row.known]:
        pytest.skip(f"torch {torch.__version__} has no {', no '.join(unknown)}")


def test_every_algorithm_has_a_column() -> None:
    assert {column.algorithm for column in ALL} == set(COLUMNS) == set(ALGORITHMS)


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text() == page(), "python -m tests.uses.table > docs/what_works.md"
