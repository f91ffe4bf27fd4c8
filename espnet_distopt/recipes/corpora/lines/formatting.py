"""Formats data directories of text lines: makes features, or only checks the images."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import write_table
from espnet_distopt.files.text import read_text
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.corpora.kaldi.arks import MatrixArkWriter, ark_names
from espnet_distopt.recipes.corpora.lines.images import (
    MIN_COLUMNS,
    Gray,
    Ink,
    UnfitLine,
    check_columns,
    columns,
    is_blank,
    least_columns,
    line_features,
    read_image,
)
from espnet_distopt.recipes.corpora.lines.sets import IMAGES, LineDir
from espnet_distopt.recipes.corpora.parallel import do_shares

ARK, RAW = "ark", "raw"
FEATURES = "feats.scp"
SCALING = "line_scaling"
"""The file of a dump directory that has the height and the least rows of its lines."""


@dataclass(frozen=True)
class _Line:
    """A line to format; a model reads its text from so many columns at the `least`."""

    id: str
    path: str
    least: int
    where: str


@dataclass(frozen=True)
class LineJob:
    """Lines that one process formats; the options are those of `format_lines`.

    `ark` is the file to write, and the name it will have; None if images are only
    checked.
    """

    lines: Sequence[_Line]
    height: int
    least_rows: int
    keep_all: bool
    ark: tuple[Path, Path] | None


@dataclass
class WrittenLines:
    """The places and widths of the lines that were written, and why some are unfit."""

    places: dict[str, str] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def add(self, other: "WrittenLines") -> None:
        """Add what another process wrote."""
        self.places |= other.places
        self.columns |= other.columns
        self.unfit |= other.unfit


def format_lines(
    source: Path,
    target: Path,
    *,
    height: int = 32,
    least_rows: int = 0,
    feats: str = ARK,
    keep_all: bool = False,
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WrittenLines:
    """Check the lines of a data directory, and write them into a dump directory.

    A line that can't be used (unreadable, without text, without ink, too narrow, too
    wide) is skipped and listed in `skipped.txt`. With `keep_all`, which is meant for
    test sets, an image that can't be read is an error. Other lines are kept then, and
    one of an impossible width is blank where features are written, so that a score
    still counts its text.

    Args:
        source: The data directory.
        target: The dump directory, which is replaced whole or not at all.
        height: The height in pixels that lines are scaled to.
        least_rows: Images with fewer rows are padded with paper to so many before they
            are scaled; 0 pads none.
        feats: ARK to write features into arks, or RAW to write the paths of the images.
        keep_all: Whether all lines are kept.
        nj: The number of processes; each writes an ark.
        progress: Called with the number of lines done, and of all.

    Raises:
        InputError: The data directory is bad, an image can't be read although all lines
            are to be kept, or no line is left.
    """
    for name, value in (("--nj", nj), ("--height", height)):
        if value < 1:
            raise InputError(f"{name} is {value}, expected at least 1")
    if least_rows < 0:
        raise InputError(f"--least_rows is {least_rows}, expected at least 0")
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: must be another directory than the source")
    data = LineDir.read(source)
    written = WrittenLines()
    with whole_directory(target, marker=SCALING) as new:
        works = [
            LineJob(
                part,
                height,
                least_rows,
                keep_all,
                (new / name, target / name) if name else None,
            )
            for part, name in _split(data, source, nj, feats)
        ]
        for each in do_shares(_format_share, works, len(data.text), progress):
            written.add(each)
        kept = LineDir(
            images=written.places,
            text={key: data.text[key] for key in written.places},
            utt2spk={key: data.utt2spk[key] for key in written.places},
            skipped=written.unfit,
        )
        kept.write_files(new, source, locations=FEATURES if feats == ARK else IMAGES)
        write_table(new / "utt2num_frames", written.columns)
        write_text(new / SCALING, f"{height} {least_rows}\n")
    return written


def check_scaling(dump: Path, height: int, least_rows: int) -> None:
    """Check that the features of a dump directory were scaled as a model expects.

    The height is in pixels. A directory without the file `line_scaling` is not checked.

    Raises:
        InputError: They were scaled in another way.
    """
    path = dump / SCALING
    if path.exists() and read_text(path).split() != [str(height), str(least_rows)]:
        found = " ".join(read_text(path).split())
        raise InputError(
            f"{dump}: its lines were scaled with the height and least rows {found}, "
            f"and the model's with {height} {least_rows}: format them anew (stage 3)"
        )


def _format_share(work: LineJob, progress: Callable[[int], None]) -> WrittenLines:
    """Format the lines of a process, with one image in memory at a time."""
    written = WrittenLines()
    with ExitStack() as stack:
        ark = stack.enter_context(MatrixArkWriter(*work.ark)) if work.ark else None
        for line in work.lines:
            _format_line(work, line, ark, written)
            progress(1)
        if ark:
            written.places = ark.locations
    return written


def _format_line(
    work: LineJob, line: _Line, ark: MatrixArkWriter | None, written: WrittenLines
) -> None:
    try:
        image = read_image(Path(line.path))
    except InputError as error:
        if work.keep_all:
            raise InputError(f"{line.where}: {line.id}: {error}") from None
        written.unfit[line.id] = f"unreadable: {error}"
        return
    count, ink = columns(image, work.height, work.least_rows), _features(image, work)
    try:
        _check_line(count, ink, line.least)
    except UnfitLine as error:
        written.unfit[line.id] = str(error)
        if not work.keep_all:
            return
    if ark is not None:
        ark[line.id] = ink
        count = len(ink)
    else:
        written.places[line.id] = str(Path(line.path).absolute())
    written.columns[line.id] = max(count, 1)


def _check_line(count: int, ink: Ink, least: int) -> None:
    check_columns(count)
    if least == 0:
        raise UnfitLine("without text")
    if count < least:
        raise UnfitLine(
            f"too narrow for its text: {count} columns, expected at least {least}"
        )
    if is_blank(ink):
        raise UnfitLine("without ink")


def _features(image: Gray, work: LineJob) -> Ink:
    """Return the features of a line, which is blank if its width is impossible."""
    try:
        return line_features(image, work.height, work.least_rows)
    except UnfitLine:
        return np.zeros((MIN_COLUMNS, work.height), np.float32)


def _split(
    data: LineDir, source: Path, nj: int, feats: str
) -> list[tuple[list[_Line], str]]:
    """Divide the lines into at most `nj` parts, each with the name of its ark."""
    lines = [
        _Line(key, path, least_columns(data.text[key]), f"{source / IMAGES}:{number}")
        for number, (key, path) in enumerate(data.images.items(), start=1)
    ]
    nj = min(nj, len(lines))
    edges = [len(lines) * job // nj for job in range(nj + 1)]
    names = [""] * nj if feats == RAW else ark_names("feats", nj)
    return [
        (lines[start:end], name)
        for start, end, name in zip(edges[:-1], edges[1:], names, strict=True)
    ]
