"""Reads Kaldi data directories with checks, and writes them whole or not at all.

A directory holds `wav.scp`, `text`, `utt2spk` and `spk2utt`. If it also holds
`segments`, then `wav.scp` lists recordings instead of utterances. A file
`reco2file_and_channel` tells the file and the channel of each recording. Every file is
UTF-8 and has an id and its value on each line, sorted as by `LC_ALL=C sort`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from espnet_distopt.corpora.kaldi.tables import (
    Table,
    line_of,
    one_field,
    read_table,
    same_ids,
    write_table,
)
from espnet_distopt.corpora.kaldi.utt2spk import (
    check_spk2utt,
    check_starts_with_speaker,
    group_by_speaker,
)
from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory

_Value = TypeVar("_Value")

CHANNELS = ("A", "B")
"""The names of the first and the second channel of a file."""


@dataclass(frozen=True)
class Segment:
    """The part of a recording that is an utterance; start and end in seconds."""

    recording: str
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.recording} {self.start:.6f} {self.end:.6f}"


@dataclass(frozen=True)
class FileChannel:
    """The name of the file that a recording comes from, and the channel, `A` or `B`."""

    file: str
    channel: str

    def __str__(self) -> str:
        return f"{self.file} {self.channel}"


@dataclass(frozen=True, kw_only=True)
class DataDir:
    """What a Kaldi data directory holds.

    Attributes:
        wav: The path, or `path.ark:offset`, of each recording. Without segments, each
            utterance is a recording.
        text: The words of each utterance; may be empty.
        utt2spk: The speaker of each utterance, whose id starts with the speaker's.
        segments: The place of each utterance in its recording; None without the file.
        channels: The file and the channel of each recording; None without the file.
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
            InputError: A file is missing, empty, unsorted or malformed, or the files do
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
        """Return the sorted utterances of each speaker, joined by blanks."""
        return group_by_speaker(self.utt2spk)

    def check(self, path: Path) -> None:
        """Check that the files agree.

        Args:
            path: The directory, for messages.

        Raises:
            InputError: An id is in one file and not in another, an utterance's id does
                not start with its speaker's, or a segment's times are impossible.
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
        """Write the directory in place of what `path` held, whole or not at all.

        Raises:
            InputError: The files do not agree, or `path` cannot be replaced.
        """
        with whole_directory(path) as new:
            self.write_files(new, path)

    def write_files(self, directory: Path, path: Path) -> None:
        """Write the files into `directory`, which becomes `path` once it is complete.

        Raises:
            InputError: The files do not agree.
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
                where = line_of(path, "segments", segments, utt)
                raise InputError(f"{where}: utterance {utt}: {problem}")


def _location(value: str) -> str:
    if value.startswith("|") or value.endswith("|"):
        raise ValueError("a path or path.ark:offset; pipes are not supported")
    if not value:
        raise ValueError("'id path' or 'id path.ark:offset'")
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
