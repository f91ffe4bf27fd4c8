"""Draws printed lines: a text in a font on clean paper."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from espnet_distopt.corpora.mini_ocr.texts import ALPHABET

Ink = NDArray[np.float32]
"""Ink on paper, shape (height, width), from 0 for paper to 1 for ink."""

_SIZES = (22, 40)  # pixels of the em square


def render_text(text: str, font: Path, rng: np.random.Generator) -> Ink:
    """Draw a text in one line with margins, at a random size and spacing.

    Args:
        text: The text, without line breaks.
        font: The file of the font.
        rng: Decides the size, the margins and the spacing of letters.

    Returns:
        The line, shape (height, width).
    """
    size = int(rng.integers(_SIZES[0], _SIZES[1] + 1))
    face = _face(font, size)
    spacing = float(rng.uniform(0, 0.08)) * size if rng.random() < 0.3 else 0.0
    starts = [face.getlength(text[:n]) + n * spacing for n in range(len(text) + 1)]
    left, right = (int(m) for m in rng.integers(2, max(size // 2, 3), 2))
    above, below = (int(m) for m in rng.integers(1, max(size // 5, 2), 2))
    # The font's own ascent is of no use: some letters of Computer Modern are higher.
    _, top, _, bottom = (round(edge) for edge in face.getbbox(ALPHABET))
    y = above - top
    width = left + round(starts[-1]) + right + size // 4  # slanted letters lean out
    image = Image.new("L", (width, y + bottom + below), 0)
    draw = ImageDraw.Draw(image)
    if spacing:
        for start, letter in zip(starts, text, strict=False):
            draw.text((left + start, y), letter, font=face, fill=255)
    else:
        draw.text((left, y), text, font=face, fill=255)
    return np.asarray(np.asarray(image) / 255, np.float32)


@lru_cache(maxsize=1024)
def _face(font: Path, size: int) -> ImageFont.FreeTypeFont:
    # Every Pillow has the basic layout; the other one shapes letters in another way.
    return ImageFont.truetype(font, size, layout_engine=ImageFont.Layout.BASIC)
