"""Lines of users: images with a table, or pages in PAGE XML.

A page is an image, and for each line a polygon on it and a text.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
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


@dataclass(frozen=True)
class PageLine:
    """A line of a page: its id there, the polygon around it, and its text.

    Polygon and text may be empty.
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


def _read_page(path: Path) -> Page:
    """Read a PAGE file of any version.

    The image is looked for beside the file and in the directory above it.
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
    return image, TextLine(key, str(image), text, writer or key)


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
            TextLine(key, str(out / "images" / f"{key}.png"), text, writer or name)
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
            skipped[key] = f"without text: {page.path}: line {line.id}"
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
