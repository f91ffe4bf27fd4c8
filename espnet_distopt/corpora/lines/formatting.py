"""Formatting of text lines: from images to features, or to checked paths of images."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from espnet_distopt.corpora.kaldi.arks import ark_names
from espnet_distopt.corpora.kaldi.matrix_arks import MatrixArkWriter
from espnet_distopt.corpora.kaldi.tables import write_table
from espnet_distopt.corpora.lines.images import (
    MIN_COLUMNS,
    Gray,
    Ink,
    UnfitLine,
    check_columns,
    columns,
    line_features,
    read_image,
)
from espnet_distopt.corpora.lines.sets import IMAGES, LineDir
from espnet_distopt.corpora.parallel import do_shares
from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory

ARK, RAW = "ark", "raw"
FEATURES = "feats.scp"
_COLUMNS_PER_CHARACTER = 2
"""With fewer, a model that halves the columns has no path for the text (CTC)."""


@dataclass(frozen=True)
class _Line:
    """A line to format, and where the source lists it (`file:line`)."""

    id: str
    path: str
    characters: int
    where: str


@dataclass(frozen=True)
class LineJob:
    """Lines that one process formats.

    Attributes:
        lines: in the order of their ids.
        height: pixels of a column.
        keep_all: keep lines that are unfit, and let unreadable ones be an error.
        ark: the file to write, and the name it will have; None: images are only read.
    """

    lines: Sequence[_Line]
    height: int
    keep_all: bool
    ark: tuple[Path, Path] | None


@dataclass
class WrittenLines:
    """What was written: places and columns of lines; what was found unfit, and why."""

    places: dict[str, str] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def add(self, other: "WrittenLines") -> None:
        """Add what another process wrote."""
        self.places |= other.places
        self.columns |= other.columns
        self.unfit |= other.unfit


@dataclass(frozen=True)
class FormattedLines:
    """Of a directory: lines and columns that it has, and unfit lines by reason."""

    lines: int
    columns: int
    unfit: Counter[str]


def format_lines(
    source: Path,
    target: Path,
    *,
    height: int = 32,
    feats: str = ARK,
    keep_all: bool = False,
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FormattedLines:
    """Write a dump directory: the lines of a data directory, each checked.

    A line that can't be used (unreadable, without text, too narrow, too wide) is
    skipped and listed in `skipped.txt`. With `keep_all`, as for test sets, an image
    that can't be read is an error, and a line of an impossible width is kept, as a
    blank line where features are written, so that a score still counts its text.

    Args:
        source: data directory.
        target: dump directory; replaced whole or not at all.
        height: pixels that a line is scaled to.
        feats: ARK, for features in arks, or RAW, for paths of images.
        keep_all: skip nothing.
        nj: number of processes; each writes an ark.
        progress: is told how many lines are done, of how many.

    Raises:
        InputError: a bad data directory, or no line left.
    """
    for name, value in (("--nj", nj), ("--height", height)):
        if value < 1:
            raise InputError(f"{name} is {value}, expected at least 1")
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: must be another directory than the source")
    data = LineDir.read(source)
    written = WrittenLines()
    marker = FEATURES if feats == ARK else IMAGES
    with whole_directory(target, marker=_marker(target, marker)) as new:
        works = [
            LineJob(
                part, height, keep_all, (new / name, target / name) if name else None
            )
            for part, name in _split(data, source, nj, feats)
        ]
        for each in do_shares(format_share, works, len(data.text), progress):
            written.add(each)
        kept = LineDir(
            images=written.places,
            text={key: data.text[key] for key in written.places},
            utt2spk={key: data.utt2spk[key] for key in written.places},
            skipped=written.unfit,
        )
        kept.write_files(new, source, locations=marker)
        write_table(new / "utt2num_frames", written.columns)
    reasons = Counter(why.partition(":")[0] for why in written.unfit.values())
    return FormattedLines(len(kept.text), sum(written.columns.values()), reasons)


def format_share(work: LineJob, progress: Callable[[int], None]) -> WrittenLines:
    """Format the lines of a process, which has one image in memory at a time.

    Raises:
        InputError: an image can't be read, and `keep_all` asks for every line.
    """
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
    count = columns(image, work.height)
    try:
        _check_line(count, line.characters)
    except UnfitLine as error:
        written.unfit[line.id] = str(error)
        if not work.keep_all:
            return
    if ark is not None:
        ark[line.id] = features = _features(image, work.height)
        count = len(features)
    else:
        written.places[line.id] = str(Path(line.path).absolute())
    written.columns[line.id] = max(count, 1)


def _check_line(count: int, characters: int) -> None:
    check_columns(count)
    if characters == 0:
        raise UnfitLine("without text")
    if count < characters * _COLUMNS_PER_CHARACTER:
        raise UnfitLine(f"too narrow for its text: {characters} in {count} columns")


def _features(image: Gray, height: int) -> Ink:
    try:
        return line_features(image, height)
    except UnfitLine:
        return np.zeros((MIN_COLUMNS, height), np.float32)


def _split(
    data: LineDir, source: Path, nj: int, feats: str
) -> list[tuple[list[_Line], str]]:
    """At most `nj` runs of lines, about equally many, each with the name of its ark."""
    lines = [
        _Line(key, path, len(data.text[key]), f"{source / IMAGES}:{number}")
        for number, (key, path) in enumerate(data.images.items(), start=1)
    ]
    nj = min(nj, len(lines))
    edges = [len(lines) * job // nj for job in range(nj + 1)]
    names = [""] * nj if feats == RAW else ark_names("feats", nj)
    return [
        (lines[start:end], name)
        for start, end, name in zip(edges[:-1], edges[1:], names, strict=True)
    ]


def _marker(target: Path, marker: str) -> str:
    """The file by which `target` is known as a dump directory, of either kind."""
    other = IMAGES if marker == FEATURES else FEATURES
    return other if (target / other).exists() else marker
