"""Kaldi data directories: reading with checks, and writing whole or not at all.

A directory holds `wav.scp`, `text`, `utt2spk` and `spk2utt`; with `segments`,
`wav.scp` lists recordings instead of utterances; `reco2file_and_channel` tells the
channel of each recording of a two-channel file. Every file is UTF-8, an id and its
value on each line, sorted as by `LC_ALL=C sort`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from espnet_distopt.data.replacement import replacement_directory
from espnet_distopt.errors import InputError

Table = Mapping[str, str]
_Value = TypeVar("_Value")

CHANNELS = ("A", "B")
"""Names of the first and the second channel of a file."""


@dataclass(frozen=True)
class Segment:
    """Where an utterance lies: start and end in seconds from the recording's start."""

    recording: str
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.recording} {self.start:.6f} {self.end:.6f}"


@dataclass(frozen=True)
class FileChannel:
    """The file a recording comes from, by its name, and its channel, `A` or `B`."""

    file: str
    channel: str

    def __str__(self) -> str:
        return f"{self.file} {self.channel}"


@dataclass(frozen=True, kw_only=True)
class DataDir:
    """What a Kaldi data directory holds.

    Attributes:
        wav: path, or `path.ark:offset`, of each recording (without segments: of each
            utterance).
        text: words of each utterance; may be empty.
        utt2spk: speaker of each utterance; an utterance id starts with its speaker id.
        segments: place of each utterance in its recording, or None.
        channels: file and channel of each recording, or None.
    """

    wav: Table
    text: Table
    utt2spk: Table
    segments: Mapping[str, Segment] | None = None
    channels: Mapping[str, FileChannel] | None = None

    @classmethod
    def read(cls, path: Path) -> "DataDir":
        """Read a directory and check it.

        Raises:
            InputError: a file is missing, empty, unsorted or malformed, or the files do
                not agree; the message names file and line.
        """
        if not path.is_dir():
            raise InputError(f"{path}: no such data directory")
        channels = path / "reco2file_and_channel"
        data = cls(
            wav=read_table(path / "wav.scp", _location),
            text=read_table(path / "text", str),
            utt2spk=read_table(path / "utt2spk", one_field),
            segments=_read_if_there(path / "segments", _segment),
            channels=_read_if_there(channels, _file_channel),
        )
        data.check(path)
        check_spk2utt(path / "spk2utt", data.spk2utt())
        return data

    def spk2utt(self) -> dict[str, str]:
        """Return the utterances of each speaker, in one string, sorted."""
        return group_by_speaker(self.utt2spk)

    def check(self, path: Path) -> None:
        """Check that the files agree.

        Args:
            path: the directory, for messages.

        Raises:
            InputError: an id is in one file and not in another, an utterance does not
                start with its speaker, or a segment's times are impossible.
        """
        names = {"wav.scp": self.wav, "text": self.text, "utt2spk": self.utt2spk}
        for name, table in names.items():
            if not table:
                raise InputError(f"{path / name}: empty")
        same_ids(path, "text", self.text, "utt2spk", self.utt2spk)
        if self.segments is None:
            same_ids(path, "text", self.text, "wav.scp", self.wav)
        else:
            same_ids(path, "text", self.text, "segments", self.segments)
            self._check_segments(path, self.segments)
        if self.channels is not None:
            name = "reco2file_and_channel"
            same_ids(path, "wav.scp", self.wav, name, self.channels)
        check_starts_with_speaker(path, self.utt2spk)

    def write(self, path: Path) -> None:
        """Write the directory in place of what `path` held: whole or not at all.

        Raises:
            InputError: the files do not agree, or `path` cannot be replaced.
        """
        with whole_directory(path) as new:
            self.write_files(new, path)

    def write_files(self, directory: Path, path: Path) -> None:
        """Write the files into `directory`, which becomes `path` once it is complete.

        Raises:
            InputError: the files do not agree.
        """
        self.check(path)
        write_table(directory / "wav.scp", self.wav)
        write_table(directory / "text", self.text)
        write_table(directory / "utt2spk", self.utt2spk)
        write_table(directory / "spk2utt", self.spk2utt())
        if self.segments is not None:
            write_table(directory / "segments", self.segments)
        if self.channels is not None:
            write_table(directory / "reco2file_and_channel", self.channels)

    def _check_segments(self, path: Path, segments: Mapping[str, Segment]) -> None:
        for utt, segment in segments.items():
            problem = ""
            if segment.recording not in self.wav:
                problem = f"recording {segment.recording} is not in wav.scp"
            elif not 0 <= segment.start < segment.end < math.inf:
                problem = (
                    f"expected 0 <= start < end in seconds, got {segment.start} and "
                    f"{segment.end}"
                )
            if problem:
                where = _where(path, "segments", segments, utt)
                raise InputError(f"{where}: utterance {utt}: {problem}")


@contextmanager
def whole_directory(path: Path, marker: str = "wav.scp") -> Iterator[Path]:
    """Give a new directory that takes the place of `path` if the body succeeds.

    Raises:
        InputError: `path` holds files but no `marker`, or cannot be written.
    """
    try:
        with replacement_directory(path, marker) as new:
            yield new
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def read_table(path: Path, parse: Callable[[str], _Value]) -> dict[str, _Value]:
    """Read a file of ids and values: sorted, with unique ids and no blank line.

    Args:
        path: the file.
        parse: makes the value of a line from its text behind the id (`str` keeps the
            text); raises ValueError(what was expected).

    Raises:
        InputError: the file cannot be read or is not of this form.
    """
    table: dict[str, _Value] = {}
    above = ""
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}:{number}"
        key, *rest = line.split(maxsplit=1)[:2] or [""]
        if not key:
            raise InputError(f"{where}: blank line")
        if key in table:
            raise InputError(f"{where}: {key} comes twice")
        if key < above:
            raise InputError(
                f"{where}: {key} must come before {above}: sort the file with "
                "LC_ALL=C sort"
            )
        try:
            table[key] = parse(rest[0].rstrip() if rest else "")
        except ValueError as error:
            raise InputError(f"{where}: expected {error}") from None
        above = key
    if not table:
        raise InputError(f"{path}: empty")
    return table


def write_table(path: Path, table: Mapping[str, object]) -> None:
    """Write ids and values, sorted by id. Not atomic: see `whole_directory`.

    Raises:
        InputError: an id has a space, or a line a line break.
    """
    lines = []
    for key in sorted(table):  # by code point: the order of the C locale over UTF-8
        line = f"{key} {table[key]}".rstrip()
        if key.split() != [key] or "\n" in line:
            raise InputError(f"{path.name}: space in an id or line break: {line!r}")
        lines.append(f"{line}\n")
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        # Not splitlines, which also splits at characters that a text may contain.
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{number}: expected UTF-8 text") from None
    return lines if lines[-1] else lines[:-1]


def _location(value: str) -> str:
    if value.startswith("|") or value.endswith("|"):
        raise ValueError("a path or path.ark:offset; pipes are not supported")
    if not value:
        raise ValueError("'id path' or 'id path.ark:offset'")
    return value


def group_by_speaker(utt2spk: Table) -> dict[str, str]:
    """Return the utterances of each speaker, in one string, sorted."""
    utterances: dict[str, list[str]] = {}
    for utt in sorted(utt2spk):
        utterances.setdefault(utt2spk[utt], []).append(utt)
    return {speaker: " ".join(utts) for speaker, utts in utterances.items()}


def one_field(value: str) -> str:
    """Check that a value has no blank in it (a `parse` of `read_table`)."""
    if len(value.split()) != 1:
        raise ValueError("'utterance speaker'")
    return value


def _segment(value: str) -> Segment:
    try:
        recording, start, end = value.split()
        return Segment(recording, float(start), float(end))
    except ValueError:
        raise ValueError("'utterance recording start end', in seconds") from None


def _file_channel(value: str) -> FileChannel:
    fields = value.split()
    if len(fields) != 2 or fields[1] not in CHANNELS:
        raise ValueError("'recording file A' or 'recording file B'")
    return FileChannel(*fields)


def _read_if_there(
    path: Path, parse: Callable[[str], _Value]
) -> dict[str, _Value] | None:
    return read_table(path, parse) if path.exists() else None


def same_ids(
    path: Path,
    name: str,
    table: Mapping[str, object],
    other_name: str,
    other: Mapping[str, object],
) -> None:
    """Check that two tables of the directory `path` have the same ids.

    Raises:
        InputError: they don't; the message names the line of an id that is missing.
    """
    for one, ones, two, twos in (
        (name, table, other_name, other),
        (other_name, other, name, table),
    ):
        for key in ones:
            if key not in twos:
                where = _where(path, one, ones, key)
                raise InputError(f"{where}: {key} is not in {path / two}")


def _where(path: Path, name: str, table: Mapping[str, object], key: str) -> str:
    # The files are sorted and have one id a line, so the rank of an id is its line.
    return f"{path / name}:{sorted(table).index(key) + 1}"


def check_starts_with_speaker(path: Path, utt2spk: Table) -> None:
    """Check that each utterance of the directory `path` starts with its speaker.

    Raises:
        InputError: one doesn't.
    """
    for utt, speaker in utt2spk.items():
        if not utt.startswith(speaker):
            where = _where(path, "utt2spk", utt2spk, utt)
            raise InputError(
                f"{where}: utterance {utt} must start with its speaker, {speaker}"
            )


def check_spk2utt(path: Path, expected: Table) -> None:
    """Check that the file `path` groups the utterances as `expected`.

    Raises:
        InputError: it doesn't, or can't be read.
    """
    found = read_table(path, str)
    for number, speaker in enumerate(sorted({*found, *expected}), start=1):
        utts = found.get(speaker, "").split()
        if utts != expected.get(speaker, "").split():
            raise InputError(
                f"{path}:{number}: speaker {speaker}: expected the utterances that "
                "utt2spk gives this speaker, sorted"
            )
