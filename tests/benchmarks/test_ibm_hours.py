"""These tests check the hours of IBM's trainings against sums by hand."""

from dataclasses import replace

import ibm_hours
import pytest
from ibm_hours import LINE, ROWS, hours, line, scaled


def test_one_gpu_takes_the_hours_that_its_line_was_found_from() -> None:
    step = line()
    for row in LINE:
        assert hours(row, step) == pytest.approx(row.hours)
    assert hours(LINE[0], scaled(step, 2)) == pytest.approx(2 * LINE[0].hours)


def test_learners_that_wait_for_nobody_divide_the_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal learners, whose messages hide behind their steps, divide the hours."""
    monkeypatch.setattr(ibm_hours, "SPREAD", 0.0)
    row = next(row for row in ROWS if row.algorithm == "d1d_model")
    alone = hours(replace(LINE[0], batch=row.batch), line())
    assert hours(row, line()) == pytest.approx(alone / row.learners, rel=0.05)
