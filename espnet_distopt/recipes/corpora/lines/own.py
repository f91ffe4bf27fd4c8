"""Lines of users: images with a table, or pages in PAGE XML.

A page is an image, and for each line a polygon on it and a text. Programs also write
how a line lies on its page: by the angle of its region, and by the direction in which
the points of its baseline follow each other. Lines are turned until they run from left
to right.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.lines.images import Gray, read_image, stored_image
from espnet_distopt.recipes.corpora.lines.sets import (
    IMAGES,
    LineDir,
    TextLine,
    check_direction,
    normal_text,
    plain_id,
)
from espnet_distopt.recipes.corpora.lines.xml import children, local_name, read_xml

Point = tuple[float, float]
"""The place of a point: x to the right and y downwards, in pixels."""

_MIN_SIDE = 2  # pixels of a line's box
_MIN_HEIGHT = 4  # pixels, on average; lower outlines are baselines and strokes
_MIN_RISE = 2  # pixels from one end of a line to the other; else turning only blurs
_VERTICAL = ("top-to-bottom", "bottom-to-top")


@dataclass(frozen=True)
class PageLine:
    """A line of a page.

    Attributes:
        polygon: The outline of the line; may be empty, and may cross itself.
        baseline: The points under the letters in the order of reading; may be empty.
        orientation: The degrees by which the line must be turned clockwise to be
            upright, as its region or its page says; 0 if they say nothing.
        direction: PAGE's `readingDirection`; empty if none is given.
        unfit: Why the text cannot be known; empty if it can.
    """

    id: str
    polygon: tuple[Point, ...]
    text: str
    baseline: tuple[Point, ...] = ()
    orientation: float = 0.0
    direction: str = ""
    unfit: str = ""


@dataclass(frozen=True)
class Page:
    """A page: its PAGE file, its image, the size that the file tells, and its lines."""

    path: Path
    image: Path
    width: int
    height: int
    lines: tuple[PageLine, ...]


def _read_page(path: Path) -> Page:
    """Read a PAGE file of any version.

    The image is looked for beside the file and in the directory above it, also by the
    last part of its name, since some programs write a path of their own machine.
    """
    root = read_xml(path)
    pages = children(root, "Page")
    if len(pages) != 1:
        alto = ": this is ALTO, and the same programs export PAGE, too"
        raise InputError(
            f"{path}: expected PAGE XML with one Page, got {len(pages)}"
            + alto * (local_name(root) == "alto")
        )
    page = pages[0]
    name = page.get("imageFilename")
    if not name:
        raise InputError(f"{path}: the Page has no imageFilename")
    windows = PureWindowsPath(name)
    places = [
        folder / part
        for part in (name, windows.as_posix(), windows.name)
        for folder in (path.parent, path.parent.parent)
    ]
    image = next((place for place in places if place.is_file()), None)
    if image is None:
        raise InputError(f"{path}: no image {places[0]} or {places[1]}")
    lines: dict[str, PageLine] = {}
    for line in _lines(page, path):
        if line.id in lines:
            raise InputError(f"{path}: two lines are called {line.id}")
        lines[line.id] = line
    width, height = (_size(page, key, path) for key in ("imageWidth", "imageHeight"))
    return Page(path, image, width, height, tuple(lines.values()))


def _read_page_image(page: Page) -> Gray:
    """Read the image of a page, shape (height, width).

    If the image is stored turned (EXIF), the page's file may describe what is stored or
    what is upright; its size tells which.
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
    """Cut the box around a line's polygon out of its page, and turn it upright.

    The parts of the box outside the polygon, which show the lines above and below, get
    the grey level of the line's paper. Parts of the polygon outside the page are left
    out.

    Raises:
        InputError: The line has no polygon, it is too low to hold letters or outside
            the page, or nothing tells how the line lies; the message does not name the
            line.
    """
    angle = _angle(line)
    if len(line.polygon) < 3:
        advice = ": let the program that drew its baseline compute outlines"
        raise InputError(
            f"a polygon of {len(line.polygon)} points{advice if line.baseline else ''}"
        )
    xs, ys = zip(*line.polygon, strict=True)
    height, width = image.shape
    left, right = max(int(min(xs)), 0), min(int(max(xs)) + 1, width)
    top, bottom = max(int(min(ys)), 0), min(int(max(ys)) + 1, height)
    if right - left < _MIN_SIDE or bottom - top < _MIN_SIDE:
        raise InputError(
            f"its box, x {min(xs):g} to {max(xs):g} and y {min(ys):g} to {max(ys):g}, "
            f"is outside the page of {width} x {height} pixels, or empty"
        )
    box = image[top:bottom, left:right].copy()
    inside = _inside([(x - left, y - top) for x, y in line.polygon], box.shape)
    paper = int(np.median(box[inside])) if inside.any() else 255
    box[~inside] = paper
    skew = math.remainder(angle, 90)
    if abs(math.sin(math.radians(skew))) * max(box.shape) < _MIN_RISE:
        angle -= skew
    # PAGE's angles are clockwise, and those of Pillow are not.
    mask = Image.fromarray(inside).rotate(-angle, expand=True)
    way = Image.Resampling.BICUBIC
    turned = Image.fromarray(box).rotate(-angle, way, expand=True, fillcolor=paper)
    if angle % 90:  # then the turned box has corners of paper
        turned, mask = (one.crop(mask.getbbox()) for one in (turned, mask))
    if inside.sum() < _MIN_HEIGHT * mask.width:
        raise InputError(
            f"its outline is {inside.sum() / mask.width:.1f} pixels high on average, "
            f"expected at least {_MIN_HEIGHT}"
        )
    return np.asarray(turned)


def _inside(polygon: Sequence[Point], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which pixels an outline goes around, or through; shape (height, width).

    A pixel counts, however often the outline goes around it: outlines that programs
    compute cross themselves, and cover a part of the line twice.
    """
    height, width = shape
    rows = np.arange(height)
    turns = np.zeros((height, width + 1), np.int32)
    edges = list(zip(polygon, (*polygon[1:], polygon[0]), strict=True))
    for (x0, y0), (x1, y1) in edges:
        crossed = rows[(min(y0, y1) <= rows) & (rows < max(y0, y1))]
        if crossed.size:
            at = x0 + (crossed - y0) * (x1 - x0) / (y1 - y0)
            columns = np.ceil(at).clip(0, width).astype(int)
            turns[crossed, columns] += 1 if y1 > y0 else -1
    outline = Image.new("1", (width, height))
    ImageDraw.Draw(outline).line([*polygon, polygon[0]], fill=1)
    around: NDArray[np.bool_] = np.asarray(outline)
    around = around | (turns.cumsum(axis=1)[:, :-1] != 0)
    return around


def _angle(line: PageLine) -> float:
    """Return the degrees by which a line must be turned clockwise to be upright.

    The baseline tells more exactly than the region how its line lies.

    Raises:
        InputError: What the page says of the line does not agree.
    """
    angle = line.orientation
    if line.baseline and line.baseline[0] != line.baseline[-1]:
        (x0, y0), (x1, y1) = line.baseline[0], line.baseline[-1]
        runs = math.degrees(math.atan2(y0 - y1, x1 - x0))
        if angle and abs(math.remainder(angle - runs, 360)) > 45:
            raise InputError(
                f"orientation says that it is upright when turned by {angle:g} degrees "
                f"clockwise, and its baseline by {runs:.0f}: correct one of them"
            )
        angle = runs
    if line.direction in _VERTICAL and abs(math.remainder(angle, 180)) < 45:
        raise InputError(
            f"readingDirection is {line.direction}, and neither a baseline nor an "
            "orientation says how to turn it"
        )
    return angle


def _lines(
    element: ElementTree.Element, path: Path, turn: float = 0.0, direction: str = ""
) -> Iterator[PageLine]:
    """Yield the lines of a page or a region, in the order of the file.

    Args:
        element: The page or the region.
        path: The page's file, for messages.
        turn: The orientation of what is around the element, in degrees clockwise.
        direction: The reading direction of what is around it.
    """
    # Angles are those against the page. Some programs write 0 where they know nothing.
    turn = _degrees(element, "orientation", path) or turn
    turn += _degrees(element, "readingOrientation", path)
    direction = element.get("readingDirection", direction)
    for child in element:
        if local_name(child) == "TextLine":
            yield _line(child, path, turn, child.get("readingDirection", direction))
        else:
            yield from _lines(child, path, turn, direction)


def _degrees(element: ElementTree.Element, key: str, path: Path) -> float:
    value = element.get(key, "0")
    try:
        angle = float(value)
    except ValueError:
        angle = math.nan
    if not math.isfinite(angle):
        name = f"{local_name(element)} {element.get('id', '')}".strip()
        raise InputError(f"{path}: {name}: expected degrees as {key}: {value!r}")
    return angle


def _line(
    element: ElementTree.Element, path: Path, turn: float, direction: str
) -> PageLine:
    key = element.get("id")
    if not key:
        raise InputError(f"{path}: a TextLine has no id")
    polygon, baseline = (
        _points(found[0], f"{path}: line {key}") if found else ()
        for found in (children(element, name) for name in ("Coords", "Baseline"))
    )
    try:
        text, unfit = normal_text(_text(element)), ""
    except InputError as error:
        text, unfit = "", str(error)
    return PageLine(key, polygon, text, baseline, turn, direction, unfit)


def _text(element: ElementTree.Element) -> str:
    """Return the text of a line, a word or a glyph: its own, or that of its parts.

    Of several versions, that with the lowest index is the text.

    Raises:
        InputError: Versions differ, and no index tells which is the text, or only some
            of the parts have a text.
    """
    versions: dict[int, set[str]] = {}
    for version in children(element, "TextEquiv"):
        texts = [*children(version, "Unicode"), *children(version, "PlainText")]
        text = next((one.text for one in texts if one.text), "")
        versions.setdefault(_index(version), set()).add(normal_text(text))
    own = versions[min(versions)] - {""} if versions else set()
    if len(own) > 1:
        raise InputError(
            f"{len(own)} versions, of which no index says which is right: "
            + ", ".join(map(repr, sorted(own)))
        )
    if own:
        return own.pop()
    for name, between in (("Word", " "), ("Glyph", "")):
        parts = children(element, name)
        of_parts = [_text(part) for part in parts]
        if "" in of_parts and any(of_parts):
            key = parts[of_parts.index("")].get("id", "?")
            raise InputError(f"{name} {key} has no text, and others of it have some")
        if any(of_parts):
            return between.join(of_parts)
    return ""


def _index(text: ElementTree.Element) -> int:
    """Return the rank of a version; one without an index is the only one."""
    index = text.get("index", "0")
    return int(index) if index.isdecimal() else 0


def _points(element: ElementTree.Element, where: str) -> tuple[Point, ...]:
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


SETS = ("train", "dev", "test")
_HEADER = ["file", "text", "writer"]
_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")


def read_table_of_lines(table: Path) -> LineDir:
    """Read a table that has, for each image of a line, file, text and perhaps writer.

    Tabs separate the fields; a first line `file text writer` is left out. The id of a
    line is the file's name without its ending, after the writer if there is one. The
    files are in the table's directory or below it.

    Returns:
        The lines. Lines without text, and images that the table lacks, are skipped.

    Raises:
        InputError: The table or an image does not exist, a line is malformed, a text
            runs from right to left, or two lines have the same id; the message names
            file and line.
    """
    images = table.parent
    lines: list[TextLine] = []
    skipped: dict[str, str] = {}
    listed: dict[Path, str] = {}
    text = read_text(table).removeprefix("\ufeff")  # Windows begins files with it
    for number, row in enumerate(text.split("\n"), start=1):
        where = f"{table}:{number}"
        fields = [field.strip() for field in row.split("\t")]
        if fields == [""] or (number == 1 and fields == _HEADER[: len(fields)]):
            continue
        image, line = _read_row(fields, images, where)
        if image in listed:
            raise InputError(f"{where}: {image} is listed before, at {listed[image]}")
        listed[image] = where
        if line.text:
            lines.append(line)
        else:
            skipped[line.id] = f"without text: {where}"
    for image in sorted(images.rglob("*")):
        if image.suffix.lower() in _SUFFIXES and image not in listed:
            name = plain_id(image.relative_to(images).as_posix())
            skipped[name] = f"without a line in {table}"
    return LineDir.of(lines, skipped)


def _read_row(fields: list[str], images: Path, where: str) -> tuple[Path, TextLine]:
    if not 2 <= len(fields) <= 3 or not fields[0]:
        raise InputError(f"{where}: expected file, text and perhaps writer, with tabs")
    image = images / fields[0]
    if not image.is_file():
        raise InputError(f"{where}: {image} does not exist")
    name = plain_id(Path(fields[0]).with_suffix("").as_posix().lstrip("/"))
    writer = plain_id(fields[2]) if len(fields) == 3 else ""
    key = f"{writer}-{name}" if writer else name
    text = normal_text(fields[1])
    check_direction(text, where)
    return image, TextLine(key, str(image.absolute()), text, writer or key)


def write_pages(
    sets: Mapping[Path, Sequence[Path]],
    writer: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Path, LineDir]:
    """Cut the lines out of pages, and write all sets with their texts, or none.

    The id of a line is made of its page's name and its own id. If no writer is given,
    each page counts as a writer of its own.

    Args:
        sets: For each data directory to write, PAGE files or directories of such; the
            images go into `images` in it.
        writer: The writer of all lines, or an empty text.
        progress: Called with the number of pages done, and of all.

    Returns:
        The lines that were written into each directory. Lines without text or outside
        their page are skipped.

    Raises:
        InputError: There is no PAGE file, or one is malformed; an image is missing,
            can't be read or has another size; a text runs from right to left; two pages
            of a set have the same name; or no line of a set is left.
    """
    files = {
        out: [file for path in paths for file in _page_files(path)]
        for out, paths in sets.items()
    }
    done, total, made = 0, sum(map(len, files.values())), {}

    def page_done() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    with ExitStack() as whole:
        for out, pages in files.items():
            new = whole.enter_context(whole_directory(out, marker=IMAGES))
            (new / "images").mkdir()
            made[out] = _cut_pages(pages, out, new, plain_id(writer), page_done)
            made[out].write_files(new, out)
    return made


def _cut_pages(
    files: Sequence[Path],
    out: Path,
    new: Path,
    writer: str,
    page_done: Callable[[], None],
) -> LineDir:
    """Write the images of a set into `new`, which becomes `out`; return its lines."""
    images = out.absolute() / "images"
    lines: list[TextLine] = []
    skipped: dict[str, str] = {}
    names: dict[str, Path] = {}
    for file in files:
        name = plain_id(file.stem)
        if name in names:
            raise InputError(f"{file}: a page of the same name is {names[name]}")
        names[name] = file
        page = _read_page(file)
        prefix = f"{writer}-{name}" if writer else name
        found, lost = _cut_page(page, prefix, new / "images")
        skipped |= lost
        lines += [
            TextLine(key, str(images / f"{key}.png"), text, writer or name)
            for key, text in found.items()
        ]
        page_done()
    return LineDir.of(lines, skipped)


def divide_pages(directory: Path) -> dict[str, list[Path]]:
    """Divide the PAGE files of a directory into train, dev and test.

    If the directory has directories of these names, they are the sets. Otherwise, of
    each ten pages in the order of their names, the ninth goes into dev and the tenth
    into test. If there are fewer than ten pages, the last two do.

    Raises:
        InputError: There are no PAGE files, fewer than three, or only some of the three
            directories.
    """
    named = [name for name in SETS if (directory / name).is_dir()]
    if named:
        lacking = [name for name in SETS if name not in named]
        if lacking:
            raise InputError(
                f"{directory}: there is {' and '.join(named)}, but no directory "
                f"{lacking[0]}"
            )
        return {name: _page_files(directory / name) for name in SETS}
    files = _page_files(directory)
    step = min(len(files), 10)
    if step < 3:
        raise InputError(
            f"{directory}: {len(files)} page(s), expected at least one each for train, "
            "dev and test"
        )
    dev, test = files[step - 2 :: step], files[step - 1 :: step]
    train = [file for file in files if file not in {*dev, *test}]
    return {"train": train, "dev": dev, "test": test}


def _cut_page(
    page: Page, prefix: str, directory: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the images of a page's lines; return texts, and why lines are skipped."""
    image = _read_page_image(page)
    texts, skipped = {}, {}
    for line in page.lines:
        key = f"{prefix}-{plain_id(line.id)}"
        if key in texts or key in skipped:
            raise InputError(f"{page.path}: two lines are called {plain_id(line.id)}")
        check_direction(line.text, f"{page.path}: line {line.id}")
        if not line.text:
            why = f": {line.unfit}" if line.unfit else ""
            skipped[key] = f"without text: {page.path}: line {line.id}{why}"
            continue
        try:
            cut = cut_line(image, line)
        except InputError as error:
            skipped[key] = f"without an image: {page.path}: line {line.id}: {error}"
            continue
        Image.fromarray(cut).save(directory / f"{key}.png")
        texts[key] = line.text
    return texts, skipped


def _page_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    # Transkribus puts lists of contents beside the pages.
    files = [
        file
        for file in sorted(path.rglob("*.xml"))
        if file.name.lower() not in ("mets.xml", "metadata.xml")
    ]
    if not files:
        raise InputError(f"{path}: no *.xml in it")
    return files
