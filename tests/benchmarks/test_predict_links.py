"""These tests check predicted times of the links benchmark against sums by hand."""

import pytest
from emulated.methods import MeasuredMethod
from links import Case
from predict_links import measured, predicted

BANDWIDTH = 12.5e6
MODEL = 4 * 35_000_000 / BANDWIDTH
"""The seconds that a model takes through the link."""


def seconds(name: str, **options: int) -> float:
    method = MeasuredMethod(name=name, options=options)
    case = Case(method=method, period=options.get("period", 1), models=1.5)
    return predicted(case, 100, 0.3, BANDWIDTH)


def test_all_reduce_waits_for_one_and_a_half_models_in_each_step() -> None:
    assert seconds("allreduce") == pytest.approx(0.3 + 1.5 * MODEL, rel=0.01)


def test_blocks_wait_for_them_once_in_a_block() -> None:
    found = seconds("local_sgd", period=8)
    assert found == pytest.approx(0.3 + 1.5 * MODEL / 8, rel=0.01)


@pytest.mark.parametrize("rate", [1000, 100])
def test_measured_tables_are_read(rate: int) -> None:
    found, bandwidth = measured(rate)
    assert found["no communication"] < found["allreduce"]
    assert 0.8 < bandwidth * 8 / (rate * 1e6) <= 1
