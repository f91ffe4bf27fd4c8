"""Handwritten lines: strings of the handwritten digits that come with scikit-learn.

`load_digits` is the test half (1797 images, 8 x 8) of the UCI set "Optical Recognition
of Handwritten Digits", in that half's order. UCI says that 13 people wrote it, and 30
others the training half; it does not say who wrote which digit. But the digits come
form by form: the labels repeat the same sequence of 130 digits, of which a few are
lost, so that 14 forms can be told apart. All digits of a form look alike, so each form
has one writer. As 13 people filled in 14 forms, one of them filled in two, and nobody
knows which two. If whole forms are divided among the sets, then no image and no writer
is in two sets, except perhaps for this one person.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from espnet_distopt.corpora.mini_ocr.rendering import Ink
from espnet_distopt.errors import InputError

FORMS = (0, 130, 256, 386, 516, 646, 776, 915, 1029, 1157, 1287, 1415, 1545, 1667, 1797)
"""Where each form starts, and where the last one ends."""

TRAIN_FORMS = range(0, 10)
DEV_FORMS = range(10, 11)
TEST_FORMS = range(11, 14)

_SIZE = 30  # pixels: about the height of a digit


def digits_of(form: int) -> tuple[range, NDArray[np.int64]]:
    """Return the indices of a form's digits in the data set, and their labels."""
    where = range(FORMS[form], FORMS[form + 1])
    return where, _data()[1][where.start : where.stop]


def render_digits(indices: tuple[int, ...], rng: np.random.Generator) -> Ink:
    """Write digits in a row as one hand does, with similar sizes and slants.

    Args:
        indices: The indices of the digits' images in the data set, from left to right.
        rng: Decides slant, sizes, heights, gaps and margins.

    Returns:
        The line, shape (height, width), from 0 for paper to 1 for ink.
    """
    slant = rng.uniform(-0.25, 0.35)
    gap = rng.uniform(1, 8)
    edge, contrast = rng.uniform(0.5, 0.65), rng.uniform(1.5, 3)
    inks = [_glyph(_data()[0][index], slant, rng) for index in indices]
    glyphs = [_pen(ink, edge, contrast) for ink in inks]
    margins = rng.integers(2, 14, 2)
    lift = 3  # pixels by which a digit may stand higher or lower
    height = max(glyph.shape[0] for glyph in glyphs) + 2 * lift
    gaps = [max(round(gap + rng.uniform(-2, 3)), 0) for _ in glyphs]
    width = sum(g.shape[1] for g in glyphs) + sum(gaps) + int(margins.sum())
    line = np.zeros((height, width + lift), np.float32)
    x = int(margins[0])
    for glyph, space in zip(glyphs, gaps, strict=True):
        rows, columns = glyph.shape
        y = (height - rows) // 2 + int(rng.integers(-lift, lift + 1))
        y = min(max(y, 0), height - rows)
        place = line[y : y + rows, x : x + columns]
        np.maximum(place, glyph, out=place)
        x += columns + space
    return line


def _glyph(image: Ink, slant: float, rng: np.random.Generator) -> Ink:
    """Return a digit at full size, smooth and slanted."""
    zoom = _SIZE / 8 * rng.uniform(0.85, 1.15)
    stretch = rng.uniform(0.85, 1.15)
    # Each side gets 2 of the image's pixels of room.
    shape = (round(8 * zoom), round(12 * zoom * stretch))
    lean = slant + rng.uniform(-0.08, 0.08)
    # The matrix maps (row, column) of the output to the input; the middle of the image
    # stays where it is.
    matrix = np.array([[1 / zoom, 0], [lean / zoom, 1 / (zoom * stretch)]])
    middle = np.array([3.5, 3.5]) - matrix @ ((np.array(shape) - 1) / 2)
    smooth = ndimage.affine_transform(image, matrix, middle, shape, order=3)
    return np.asarray(smooth, np.float32)


def _pen(ink: Ink, edge: float, contrast: float) -> Ink:
    """Return the strokes of a pen, broad if `edge` is low, without empty margins."""
    strokes = np.clip((ink - edge) * contrast + 0.5, 0, 1)
    inked = np.flatnonzero(strokes.max(axis=0) > 0.5)
    return np.asarray(strokes[:, inked[0] : inked[-1] + 1], np.float32)


@lru_cache(maxsize=1)
def _data() -> tuple[Ink, NDArray[np.int64]]:
    """Return all images (1797, 8, 8), from 0 for paper to 1 for ink, and labels."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(
            "the digits come with scikit-learn: pip install scikit-learn"
        ) from None
    bunch = load_digits()
    images = np.asarray(bunch.images / 16, np.float32)
    return images, np.asarray(bunch.target, np.int64)
