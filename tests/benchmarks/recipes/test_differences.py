"""The intervals are those of Student's t, of pairs with the same seed."""

import math

import pytest
from recipes.tables import in_words, paired


def test_the_interval_is_that_of_students_t() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t(0.975, 2) = 4.302653.
    found = paired({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(2.0), 3)
    assert found.half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert in_words(found, ".1f") == "+2.0 (-0.5 to +4.5)"


def test_what_all_seeds_share_does_not_widen_the_interval() -> None:
    found = paired(
        {n: 100.0 * n + 1 for n in range(5)}, {n: 100.0 * n for n in range(5)}
    )
    assert found is not None
    assert (found.mean, found.half) == (pytest.approx(1.0), pytest.approx(0.0))


def test_only_common_seeds_count() -> None:
    found = paired({0: 1.0, 1: 5.0}, {1: 3.0, 2: 9.0})
    assert found is not None
    assert (found.mean, found.half, found.count) == (2.0, math.inf, 1)
    assert in_words(found, ".1f") == "+2.0"
    assert paired({0: 1.0}, {1: 1.0}) is None
