"""Augmented lines: the same text, within bounds, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.models.ocr.data import Line, LineAugmentation

HEIGHT = 32
NOTHING = {"slant": 0.0, "stretch": 0.0, "elastic": 0.0, "noise": 0.0}
ALWAYS = LineAugmentation(probability=1.0)
NOISELESS = LineAugmentation(probability=1.0, noise=0.0)


def bars(count: int) -> Line:
    """A line of upright strokes, the first and last on its very edges."""
    line = np.zeros((12 * count - 8, HEIGHT), np.float32)
    for number in range(count):
        line[12 * number : 12 * number + 4, 4:-4] = 1
    return line


def strokes(line: Line) -> int:
    _, count = ndimage.label(line > 0.4, structure=np.ones((3, 3)))
    return int(count)


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_no_stroke_is_lost_torn_or_merged(seed: int, count: int) -> None:
    np.random.seed(seed)
    line = bars(count)
    changed = NOISELESS(line)
    assert strokes(changed) == count
    bend = 2 * NOISELESS.elastic / 16  # what bending adds to a single stroke's width
    ink = changed.sum() / line.sum()
    least, most = 1 - NOISELESS.stretch - bend, 1 + NOISELESS.stretch + bend
    assert 0.95 * least < ink < 1.05 * most


@pytest.mark.parametrize("strength", ["slant", "elastic"])
def test_ink_on_the_edges_stays_in_the_picture(strength: str) -> None:
    line = np.ones((40, HEIGHT), np.float32)
    largest = {"slant": 1.0, "elastic": 6.0}[strength]
    augmentation = LineAugmentation(
        **{**NOTHING, strength: largest, "probability": 1.0}
    )
    for seed in range(20):
        np.random.seed(seed)
        changed = augmentation(line)
        inner = changed[:, HEIGHT // 4 : -HEIGHT // 4]  # not what moved out vertically
        assert inner.sum() > 0.85 * inner.shape[1] * 40
        assert changed[[0, -1]].max() < 1  # there is room on both sides


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_width_and_values_stay_within_bounds(seed: int, columns: int) -> None:
    np.random.seed(seed)
    line = np.random.random((columns, HEIGHT)).astype(np.float32)
    before = line.copy()
    changed = ALWAYS(line)
    assert np.array_equal(line, before)
    assert changed.dtype == np.float32
    assert changed.shape[1] == HEIGHT
    assert 0 <= changed.min() <= changed.max() <= 1
    room = 2 * (ALWAYS.slant * HEIGHT / 2 + ALWAYS.elastic + 1)
    widest = (columns + room) * (1 + ALWAYS.stretch) + 1
    assert columns * (1 - ALWAYS.stretch) - 1 <= len(changed) <= widest


def test_the_seed_decides() -> None:
    line = bars(5)
    drawn = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        drawn.append([ALWAYS(line) for _ in range(3)])
    for one, same, other in zip(*drawn, strict=True):
        assert np.array_equal(one, same)
        assert one.shape != other.shape or not np.array_equal(one, other)


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 80))
def test_a_line_keeps_the_columns_that_its_text_needs(
    seed: int, columns: int, least: int
) -> None:
    line = np.zeros((columns, HEIGHT), np.float32)
    for conf in (NOTHING, {}):
        squeezing = LineAugmentation(**{**conf, "stretch": 0.5, "probability": 1.0})
        np.random.seed(seed)
        freely = len(squeezing(line))
        np.random.seed(seed)
        kept = len(squeezing(line, least))
        assert kept >= min(least, columns)
        assert kept == freely or freely < least


@pytest.mark.parametrize("conf", [NOTHING, {"probability": 0.0}])
def test_switched_off(conf: dict[str, float]) -> None:
    line = bars(3)
    assert np.array_equal(LineAugmentation(**conf)(line), line)


@pytest.mark.parametrize("strength", sorted(NOTHING))
def test_each_change_changes(strength: str) -> None:
    np.random.seed(0)
    conf = {**NOTHING, strength: 0.4, "probability": 1.0}
    line = bars(3)
    changed = LineAugmentation(**conf)(line)
    assert changed.shape != line.shape or not np.array_equal(changed, line)


def test_slant_leans_and_stretch_widens() -> None:
    np.random.seed(3)
    upright = bars(1)
    leaning = LineAugmentation(**{**NOTHING, "slant": 1.0, "probability": 1.0})(upright)
    top, bottom = (leaning[:, row].argmax() for row in (5, HEIGHT - 6))
    assert abs(int(top) - int(bottom)) >= 2
    widths = {
        len(
            LineAugmentation(**{**NOTHING, "stretch": 0.5, "probability": 1.0})(upright)
        )
        for _ in range(30)
    }
    assert min(widths) < len(upright) < max(widths)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"slant": -0.1}, "slant must be a number from 0 to 1, not -0.1"),
        ({"stretch": 0.9}, "stretch must be a number from 0 to 0.5, not 0.9"),
        ({"elastic": 7}, "elastic must be a number from 0 to 6.4, not 7"),
        ({"noise": float("nan")}, "noise must be a number from 0 to 1, not nan"),
        ({"probability": 2}, "probability must be a number from 0 to 1, not 2"),
        ({"slant": "much"}, "slant must be a number from 0 to 1, not 'much'"),
    ],
)
def test_bad_strengths(conf: dict[str, float], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        LineAugmentation(**conf)
