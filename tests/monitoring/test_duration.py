"""A number of seconds in words."""

import pytest

from espnet_distopt.monitoring.duration import duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_seconds_in_words(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected
