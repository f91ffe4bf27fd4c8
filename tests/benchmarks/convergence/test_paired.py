"""Differences that are paired by seed, their interval, and the answer to a question."""

import math

import pytest
from convergence.paired import Interval, Question, difference, interval


def test_differences_are_relative_to_the_loss_of_the_same_seed() -> None:
    found = difference([1.1, 2.0, 2.7], [1.0, 2.0, 3.0])
    known = interval([10, 0, -10])
    assert found is not None
    assert found.mean == pytest.approx(0, abs=1e-9)
    assert found.half == pytest.approx(known.half)


def test_a_method_that_diverged_is_worse_by_infinity() -> None:
    diverged = difference([1.0, None], [1.0, 1.0])
    assert diverged is not None and str(diverged) == "diverged"
    assert Question(2.0).answer(diverged) == "does not hold"
    assert Question(2.0, "at least").answer(diverged) == "holds"
    assert difference([1.0], [None]) is None


def test_the_interval_is_that_of_students_t() -> None:
    """Five values with deviation sqrt(2.5): 2.7764 is the quantile of four degrees."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert found.half == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5))
    assert (found.lower, found.upper) == (3 - found.half, 3 + found.half)
    assert str(found) == "+3.0 % (+1.0 to +5.0)"


def test_one_seed_decides_nothing() -> None:
    found = interval([1.0])
    assert str(found) == "+1.0 % (one seed)"
    assert Question(2.0).answer(found) == "undecided"
    assert Question(2.0).seeds_to_decide(found) is None


@pytest.mark.parametrize(
    ("mean", "half", "at_most", "at_least"),
    [
        (1.0, 1.0, "holds", "undecided"),
        (1.0, 1.1, "undecided", "undecided"),
        (3.1, 1.0, "does not hold", "holds"),
        (3.0, 1.0, "undecided", "holds"),
        (0.5, 1.0, "holds", "does not hold"),
    ],
)
def test_an_answer_needs_the_whole_interval_on_one_side(
    mean: float, half: float, at_most: str, at_least: str
) -> None:
    found = Interval(mean, half, 1.0, 5)
    assert Question(2.0, "at most").answer(found) == at_most
    assert Question(2.0, "at least").answer(found) == at_least


def test_the_seeds_that_would_decide_are_the_fewest() -> None:
    question = Question(2.0)
    found = interval([0.0, 1.0, 2.0, 3.0, 1.0])
    enough = question.seeds_to_decide(found)
    assert enough is not None

    def half(count: int) -> float:
        """The half width that `count` values of the same scatter would have."""
        values = [found.mean + (-1) ** n for n in range(count)]
        unit = interval(values)
        return unit.half / unit.deviation * found.deviation

    assert half(enough) < 1.0 - 0.4 < half(enough - 1)
    assert question.seeds_to_decide(interval([2.0, 1.0, 3.0])) is None
