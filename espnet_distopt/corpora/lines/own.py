"""Lines that users bring: images with a table, or pages in PAGE XML."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from espnet_distopt.corpora.lines.page_xml import (
    Page,
    cut_line,
    read_page,
    read_page_image,
)
from espnet_distopt.corpora.lines.sets import (
    IMAGES,
    LineDir,
    TextLine,
    normal_text,
    plain_id,
)
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.files.whole_directory import whole_directory

_HEADER = ["file", "text", "writer"]
_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")


def read_table_of_lines(table: Path, images: Path) -> LineDir:
    """Read a table of images of lines: file, text and, if known, writer.

    The fields are separated by tabs; a first line `file text writer` is left out. An id
    is the file's name without its ending; it starts with the writer, if there is one.

    Args:
        table: the table.
        images: directory that the files are in.

    Returns:
        The lines. Lines without text, and images that the table hasn't, are skipped.

    Raises:
        InputError: no such table, no such image, a line that is not of this form, or
            two lines of one id; the message names file and line.
    """
    if not images.is_dir():
        raise InputError(f"{images}: no such directory of images")
    lines: list[TextLine] = []
    skipped: dict[str, str] = {}
    listed: dict[Path, str] = {}
    text = read_text(table).removeprefix("\ufeff")  # the mark that Windows begins with
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
    return image, TextLine(key, str(image), normal_text(fields[1]), writer or key)


def write_pages(
    paths: Sequence[Path],
    out: Path,
    writer: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LineDir:
    """Cut the lines out of pages, and write them with their texts: all or nothing.

    An id is the page's name and the line's; a page stands for its writer if none is
    given.

    Args:
        paths: PAGE files, or directories of such.
        out: data directory to write; the images go into `images` in it.
        writer: of all lines.
        progress: called with the number of pages done, and of all.

    Returns:
        What was written. Lines without text or outside their page are skipped.

    Raises:
        InputError: no PAGE file, a malformed one, or an image that is missing, can't be
            read or is of another size; two pages of one name; no line at all.
    """
    files = [file for path in paths for file in _page_files(path)]
    writer = plain_id(writer)
    lines: list[TextLine] = []
    skipped: dict[str, str] = {}
    names: dict[str, Path] = {}
    with whole_directory(out, marker=IMAGES) as new:
        (new / "images").mkdir()
        for number, file in enumerate(files, start=1):
            name = plain_id(file.stem)
            if name in names:
                raise InputError(f"{file}: a page of the same name is {names[name]}")
            names[name] = file
            page = read_page(file)
            prefix = f"{writer}-{name}" if writer else name
            found, lost = _cut_page(page, prefix, new / "images")
            skipped |= lost
            lines += [
                TextLine(key, str(out / "images" / f"{key}.png"), text, writer or name)
                for key, text in found.items()
            ]
            progress(number, len(files))
        data = LineDir.of(lines, skipped)
        data.write_files(new, out)
    return data


def _cut_page(
    page: Page, prefix: str, directory: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the images of a page's lines; return their texts, and why others aren't."""
    image = read_page_image(page)
    texts, skipped = {}, {}
    for line in page.lines:
        key = f"{prefix}-{plain_id(line.id)}"
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
