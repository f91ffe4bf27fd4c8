"""Draws the worst lines as one picture: each image above its reference and hypothesis.

A character of the reference and its counterpart stand in one column. Wrong characters
are red on a tinted ground, and a box marks the place where one is missing.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from espnet_distopt.corpora.lines.images import Gray
from espnet_distopt.corpora.mini_ocr.fonts import known_fonts
from espnet_distopt.scoring.error_sheet import Column, Sheet, WrongLine

WIDTH = 1000
"""The width of the picture in pixels."""

_MARGIN, _LABEL, _TEXT_SIZE, _ROW = 12, 40, 16, 22
_LINE_HEIGHTS = (28, 64)  # pixels of a line's image; a lower one can't be read
_MOST_ENLARGED = 2
_MOST_ROWS = 4  # rows of text; what comes after them is cut
_RIGHT, _WRONG, _GROUND, _FAINT = "black", "#b00000", "#ffd9d0", "#606060"

_Font = ImageFont.FreeTypeFont
_Read = Callable[[str], Gray]


def draw_sheet(sheet: Sheet, read: _Read) -> Image.Image:
    """Draw the lines of a sheet.

    Args:
        sheet: The lines.
        read: Returns the grey image, shape (height, width), of a line by its id.

    Returns:
        A picture `WIDTH` pixels wide, less than 300 high for each line.

    Raises:
        InputError: An image cannot be read, or matplotlib, which has the fonts, is not
            installed.
    """
    artist = _Artist()
    panels = [artist.heading(sheet.heading)]
    for rank, line in enumerate(sheet.worst, start=1):
        panels.append(artist.panel(rank, line, read(line.id)))
    picture = Image.new("RGB", (WIDTH, sum(panel.height for panel in panels)), "white")
    top = 0
    for panel in panels:
        picture.paste(panel, (0, top))
        top += panel.height
    return picture


def fit(image: Gray) -> Image.Image:
    """Scale a line's image to the width of the picture.

    An image that would be too low to be read at that width is cut at its right end.
    """
    height, width = image.shape
    room = WIDTH - 2 * _MARGIN
    lowest, highest = (min(each / height, _MOST_ENLARGED) for each in _LINE_HEIGHTS)
    scale = max(lowest, min(room / width, highest))
    # It is cut first, as an image of 16,000 columns would become large for nothing.
    width = min(width, math.ceil(room / scale))
    size = (round(width * scale), round(height * scale))
    cut = Image.fromarray(np.ascontiguousarray(image[:, :width]))
    return cut.resize(
        (min(max(size[0], 1), room), max(size[1], 1)), Image.Resampling.BICUBIC
    )


class _Artist:
    """Draws the panels of the picture, with the fonts."""

    def __init__(self) -> None:
        files = {font.name: font.path for font in known_fonts()}
        # Every machine has this layout engine; some lack the other one.
        basic = ImageFont.Layout.BASIC
        self._mono = _Font(files["DejaVuSansMono"], _TEXT_SIZE, layout_engine=basic)
        self._sans = _Font(files["DejaVuSans"], _TEXT_SIZE - 3, layout_engine=basic)
        self._cell = round(self._mono.getlength("m"))
        self._columns = (WIDTH - 2 * _MARGIN - _LABEL) // self._cell

    def heading(self, text: str) -> Image.Image:
        panel = Image.new("RGB", (WIDTH, 2 * _ROW), "white")
        place = (_MARGIN, _ROW // 2)
        ImageDraw.Draw(panel).text(place, text, _RIGHT, font=self._sans)
        return panel

    def panel(self, rank: int, line: WrongLine, image: Gray) -> Image.Image:
        """Return the image of a line between its heading and its texts."""
        scaled = fit(image)
        rows = [
            line.columns[start : start + self._columns]
            for start in range(0, len(line.columns), self._columns)
        ]
        cut = len(rows) > _MOST_ROWS
        rows = rows[:_MOST_ROWS]
        height = _ROW + scaled.height + 6 + 2 * _ROW * len(rows) + _MARGIN
        panel = Image.new("RGB", (WIDTH, height), "white")
        draw = ImageDraw.Draw(panel)
        draw.line((_MARGIN, 0, WIDTH - _MARGIN, 0), "#c0c0c0")
        heading = f"{rank}. {line.heading}" + (" (text cut)" if cut else "")
        draw.text((_MARGIN, 4), heading, _FAINT, font=self._sans)
        panel.paste(scaled, (_MARGIN, _ROW))
        top = _ROW + scaled.height + 6
        for row in rows:
            self._text(draw, top, "ref", row, [column.ref for column in row])
            self._text(draw, top + _ROW, "hyp", row, [column.hyp for column in row])
            top += 2 * _ROW
        return panel

    def _text(
        self,
        draw: ImageDraw.ImageDraw,
        top: int,
        label: str,
        columns: Sequence[Column],
        characters: Sequence[str],
    ) -> None:
        draw.text((_MARGIN, top + 3), label, _FAINT, font=self._sans)
        left = _MARGIN + _LABEL
        for column, character in zip(columns, characters, strict=True):
            cell = (left, top + 1, left + self._cell - 1, top + _ROW - 2)
            if column.mark == " ":
                color = _RIGHT
            else:
                color = _WRONG
                box = None if character else _WRONG
                draw.rectangle(cell, fill=_GROUND, outline=box)
            draw.text((left, top + 1), character, color, font=self._mono)
            left += self._cell
