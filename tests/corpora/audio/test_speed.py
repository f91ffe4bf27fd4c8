"""Speed perturbation: length, pitch and loudness of the copies; factors read."""

import numpy as np
import pytest

from espnet_distopt.corpora.audio.speed import change_speed, parse_factors, prefix
from espnet_distopt.corpora.kaldi.arks import Samples
from espnet_distopt.errors import InputError

FACTORS = (0.5, 0.9, 0.95, 1.0, 1.1, 2.0)


def sine(hertz: float, time: int = 8000, level: float = 16000) -> Samples:
    phase = 2 * np.pi * hertz * np.arange(time) / 8000
    return np.rint(level * np.sin(phase)).astype(np.int16)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("time", [1, 2, 99, 800, 8001])
def test_duration_is_divided_by_the_factor(factor: float, time: int) -> None:
    changed = change_speed(sine(440, time), factor)
    assert changed.shape == (round(time / factor),)
    assert changed.dtype == np.int16


@pytest.mark.parametrize("factor", FACTORS)
def test_pitch_is_multiplied_by_the_factor(factor: float) -> None:
    inner = slice(500, -500)  # filters need some samples at the ends
    changed = change_speed(sine(1000), factor)
    expected = sine(1000 * factor, len(changed))
    assert np.abs(changed[inner].astype(int) - expected[inner]).max() <= 16


def test_what_would_be_too_high_is_gone() -> None:
    changed = change_speed(sine(3900), 1.1)  # 4290 Hz: beyond half the rate
    assert np.abs(changed[500:-500]).max() < 50


def test_overshoot_is_clipped() -> None:
    square = np.where(np.arange(8000) % 80 < 40, 32767, -32768).astype(np.int16)
    changed = change_speed(square, 0.9)
    assert changed.max() == 32767 and changed.min() == -32768
    # where the sign is far from a change, it is the original's
    middles = np.arange(20, 7900, 40)
    at = np.rint(middles / 0.9).astype(int)
    np.testing.assert_array_equal(changed[at] > 0, square[middles] > 0)


def test_twice_the_same() -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, 4000).astype(np.int16)
    np.testing.assert_array_equal(change_speed(noise, 0.9), change_speed(noise, 0.9))


def test_factors_and_names() -> None:
    assert parse_factors(" 0.9 1  1.10 ") == (0.9, 1.0, 1.1)
    assert [prefix(each) for each in (0.9, 1.0, 1.1, 2.0)] == [
        "sp0.9-",
        "",
        "sp1.1-",
        "sp2-",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected speed factors from 0.5 to 2.0"),
        ("fast", "expected speed factors"),
        ("0.9,1.1", "expected speed factors"),
        ("0", "expected speed factors"),
        ("-1", "expected speed factors"),
        ("90 100 110", "expected speed factors"),
        ("nan", "expected speed factors"),
        ("inf", "expected speed factors"),
        ("1 1.0", "comes twice"),
        ("0.9 0.90", "comes twice"),
        ("0.9 0.9000000001", "comes twice"),  # their names would be the same
    ],
)
def test_bad_factors(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_factors(text)
