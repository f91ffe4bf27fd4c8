"""Data directories of text lines: `images.scp` (or `feats.scp`), texts and writers.

They are Kaldi data directories with images in the place of recordings. The speaker of a
line is its writer, or its font. A file `skipped.txt` lists the lines of the source that
were left out, and why.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import (
    Table,
    one_field,
    read_table,
    same_ids,
    write_table,
)
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.kaldi.directory import (
    check_spk2utt,
    check_starts_with_speaker,
    group_by_speaker,
)

IMAGES = "images.scp"


@dataclass(frozen=True)
class TextLine:
    """A line of text, which may be empty, with the path of its image.

    The id starts with the writer or the font.
    """

    id: str
    image: str
    text: str
    writer: str


@dataclass(frozen=True, kw_only=True)
class LineDir:
    """What a data directory of lines holds.

    Attributes:
        images: The path of each line's image, or the place `path.ark:offset` of its
            features.
        utt2spk: The writer or font of each line, with which its id starts.
        skipped: The lines of the source that this directory lacks, and why.
    """

    images: Table
    text: Table
    utt2spk: Table
    skipped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, lines: Sequence[TextLine], skipped: Mapping[str, str] | None = None
    ) -> "LineDir":
        """Make the tables of lines.

        Raises:
            InputError: Two lines have the same id.
        """
        found: set[str] = set()
        for line in lines:
            if line.id in found:
                raise InputError(f"two lines are called {line.id}: {line.image}")
            found.add(line.id)
        return cls(
            images={line.id: line.image for line in lines},
            text={line.id: line.text for line in lines},
            utt2spk={line.id: line.writer for line in lines},
            skipped=skipped or {},
        )

    @classmethod
    def read(cls, path: Path) -> "LineDir":
        """Read a directory and check it.

        Raises:
            InputError: A file is missing, empty, unsorted or malformed, or the files do
                not agree; the message names file and line.
        """
        if not path.is_dir():
            raise InputError(f"{path}: no such data directory")
        data = cls(
            images=read_table(path / IMAGES, _path),
            text=read_table(path / "text", normal_text),
            utt2spk=read_table(path / "utt2spk", one_field),
        )
        data.check(path)
        check_spk2utt(path / "spk2utt", group_by_speaker(data.utt2spk))
        return data

    def check(self, path: Path) -> None:
        """Check that the tables agree; `path` is the directory, for messages.

        Raises:
            InputError: An id is in one table and not in another, or does not start with
                its speaker.
        """
        if not self.images:
            raise InputError(f"{path}: no line is left{self.reasons()}")
        same_ids(path, "text", self.text, "utt2spk", self.utt2spk)
        same_ids(path, "text", self.text, IMAGES, self.images)
        check_starts_with_speaker(path, self.utt2spk)

    def reasons(self) -> str:
        """Return the end of a message that tells what was skipped, or an empty text."""
        if not self.skipped:
            return ""
        first, why = next(iter(sorted(self.skipped.items())))
        return f"; {len(self.skipped)} skipped, the first: {first}: {why}"

    def write(self, path: Path) -> None:
        """Write the directory in place of what `path` held, whole or not at all.

        Raises:
            InputError: The tables do not agree, or `path` cannot be replaced.
        """
        write_sets({path: self})

    def write_files(self, new: Path, path: Path, locations: str = IMAGES) -> None:
        """Write the files into `new`, which becomes `path` once it is complete.

        Messages name `path`. The places are in `images.scp` or in `feats.scp`.

        Raises:
            InputError: The tables do not agree.
        """
        self.check(path)
        write_table(new / locations, self.images)
        write_table(new / "text", self.text)
        write_table(new / "utt2spk", self.utt2spk)
        write_table(new / "spk2utt", group_by_speaker(self.utt2spk))
        write_table(new / "skipped.txt", self.skipped)


def write_sets(sets: Mapping[Path, LineDir]) -> None:
    """Write directories in place of what was there, all of them or none.

    Raises:
        InputError: The tables of one do not agree, or one cannot be replaced.
    """
    with ExitStack() as whole:
        for path, lines in sets.items():
            new = whole.enter_context(whole_directory(path, marker=IMAGES))
            lines.write_files(new, path)


def normal_text(text: str) -> str:
    """Return a text as models see it: composed (NFC), with single blanks.

    >>> normal_text(" one  two ")
    'one two'
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def check_direction(text: str, where: str) -> None:
    """Check that a text runs from left to right, as models read the columns of a line.

    Raises:
        InputError: It is right to left. Its characters would stand in the order of
            reading against that of the columns, which CTC cannot align.
    """
    kinds = [unicodedata.bidirectional(char) for char in text]
    if kinds.count("R") + kinds.count("AL") > kinds.count("L"):
        raise InputError(
            f"{where}: the text runs from right to left, and models here read lines "
            "from left to right only: leave this line out"
        )


def plain_id(name: str) -> str:
    """Return a name as an id: without blanks, which end an id, and without slashes."""
    return "_".join(name.replace("/", "-").split())


def summarize(sets: Mapping[str, LineDir]) -> str:
    """Return a table with a row for each set; the first set has the known characters.

    The columns are lines, writers or fonts, characters, different characters,
    characters that the first set doesn't have, and lines that were skipped.
    """
    known = {char for text in next(iter(sets.values())).text.values() for char in text}
    rows = [
        f"{'set':<12} {'lines':>7} {'writers':>8} {'chars':>9} {'alphabet':>9} "
        f"{'unknown':>8} {'skipped':>8}"
    ]
    for name, lines in sets.items():
        text = "".join(lines.text.values())
        unknown = sum(char not in known for char in text)
        rows.append(
            f"{name:<12} {len(lines.text):>7} {len({*lines.utt2spk.values()}):>8} "
            f"{len(text):>9} {len({*text}):>9} {unknown:>8} {len(lines.skipped):>8}"
        )
    return "\n".join(rows)


def _path(value: str) -> str:
    if not value or value.startswith("|") or value.endswith("|"):
        raise ValueError("'id path-of-an-image'; pipes are not supported")
    return value
