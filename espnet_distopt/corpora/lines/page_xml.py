"""Reads pages in PAGE XML: an image, and for each line a polygon on it and a text."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw

from espnet_distopt.corpora.lines.images import Gray, read_image, stored_image
from espnet_distopt.corpora.lines.sets import normal_text
from espnet_distopt.errors import InputError
from espnet_distopt.files.xml import children, local_name, read_xml

Point = tuple[float, float]
"""The place of a point: x to the right and y downwards, in pixels."""

_MIN_SIDE = 2  # pixels of a line's box


@dataclass(frozen=True)
class PageLine:
    """A line of a page.

    Attributes:
        id: The line's id, which is unique on its page.
        polygon: The polygon around the line; may be empty.
        text: The text; may be empty.
    """

    id: str
    polygon: tuple[Point, ...]
    text: str


@dataclass(frozen=True)
class Page:
    """A page: its PAGE file, its image, the size that the file tells, and its lines."""

    path: Path
    image: Path
    width: int
    height: int
    lines: tuple[PageLine, ...]


def read_page(path: Path) -> Page:
    """Read a PAGE file of any version.

    The image is looked for beside the file and in the directory above it.

    Raises:
        InputError: The file is missing, not well-formed or no PAGE file, its image is
            missing, two lines have the same id, or coordinates are no numbers.
    """
    pages = children(read_xml(path), "Page")
    if len(pages) != 1:
        raise InputError(f"{path}: expected PAGE XML with one Page, got {len(pages)}")
    page = pages[0]
    name = page.get("imageFilename")
    if not name:
        raise InputError(f"{path}: the Page has no imageFilename")
    places = [path.parent / name, path.parent.parent / name]
    image = next((place for place in places if place.is_file()), None)
    if image is None:
        raise InputError(f"{path}: no image {places[0]} or {places[1]}")
    lines: dict[str, PageLine] = {}
    for element in page.iter():
        if local_name(element) == "TextLine":
            line = _line(element, path)
            if line.id in lines:
                raise InputError(f"{path}: two lines are called {line.id}")
            lines[line.id] = line
    width, height = (_size(page, key, path) for key in ("imageWidth", "imageHeight"))
    return Page(path, image, width, height, tuple(lines.values()))


def read_page_image(page: Page) -> Gray:
    """Read the image of a page, shape (height, width).

    If the image is stored turned (EXIF), the page's file may describe what is stored or
    what is upright; its size tells which.

    Raises:
        InputError: It can't be read, has not the size that the page's file tells, or is
            stored turned and has this size both ways.
    """
    upright = read_image(page.image)
    stored = stored_image(page.image, upright)
    ways = [upright] if stored is None else [upright, stored]
    fitting = [way for way in ways if way.shape == (page.height, page.width)]
    if not fitting:
        raise InputError(
            f"{page.path}: the page is {page.width} x {page.height} pixels, its image "
            f"{page.image} is {upright.shape[1]} x {upright.shape[0]}"
        )
    if len(fitting) > 1:
        raise InputError(
            f"{page.path}: its image {page.image} is stored turned (EXIF), and nothing "
            "tells whether the coordinates are of the stored or the upright image: "
            "save the image as the coordinates see it, without EXIF"
        )
    return fitting[0]


def cut_line(image: Gray, line: PageLine) -> Gray:
    """Cut the box around a line's polygon out of its page.

    The parts of the box outside the polygon, which show the lines above and below, get
    the grey level of the line's paper. Parts of the polygon outside the page are left
    out.

    Raises:
        InputError: The line has no polygon, or it lies outside the page; the message
            does not name the line.
    """
    if len(line.polygon) < 3:
        raise InputError(f"a polygon of {len(line.polygon)} points")
    xs, ys = zip(*line.polygon, strict=True)
    height, width = image.shape
    left, right = max(int(min(xs)), 0), min(int(max(xs)) + 1, width)
    top, bottom = max(int(min(ys)), 0), min(int(max(ys)) + 1, height)
    if right - left < _MIN_SIDE or bottom - top < _MIN_SIDE:
        raise InputError(
            f"its box, x {min(xs):g} to {max(xs):g} and y {min(ys):g} to {max(ys):g}, "
            f"is outside the page of {width} x {height} pixels, or empty"
        )
    mask = Image.new("1", (right - left, bottom - top))
    moved = [(x - left, y - top) for x, y in line.polygon]
    ImageDraw.Draw(mask).polygon(moved, fill=1, outline=1)
    inside = np.asarray(mask)
    box = image[top:bottom, left:right].copy()
    box[~inside] = np.median(box[inside]) if inside.any() else 255
    return box


def _line(element: ElementTree.Element, path: Path) -> PageLine:
    key = element.get("id")
    if not key:
        raise InputError(f"{path}: a TextLine has no id")
    coordinates = children(element, "Coords")
    polygon = _polygon(coordinates[0], f"{path}: line {key}") if coordinates else ()
    texts = sorted(children(element, "TextEquiv"), key=_index)
    unicode = children(texts[0], "Unicode") if texts else []
    text = (unicode[0].text or "") if unicode else ""
    return PageLine(key, polygon, normal_text(text))


def _index(text: ElementTree.Element) -> int:
    """Return the rank of a reading; one without an index is the only one."""
    index = text.get("index", "0")
    return int(index) if index.isdecimal() else 0


def _polygon(element: ElementTree.Element, where: str) -> tuple[Point, ...]:
    pairs = [point.split(",") for point in element.get("points", "").split()]
    # The first version of the format has an element for each point.
    for point in children(element, "Point"):
        pairs.append([point.get("x", ""), point.get("y", "")])
    try:
        points = tuple((float(x), float(y)) for x, y in pairs)
    except ValueError:
        raise InputError(f"{where}: expected points as '1,2 3,4 5,6'") from None
    if not np.isfinite(points).all():
        raise InputError(f"{where}: points that are not finite")
    return points


def _size(page: ElementTree.Element, key: str, path: Path) -> int:
    value = page.get(key, "")
    if not value.isdecimal():
        raise InputError(f"{path}: expected a number as the Page's {key}: {value!r}")
    return int(value)
