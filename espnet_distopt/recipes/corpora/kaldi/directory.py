"""Kaldi data directories, read with checks, and written whole or not at all.

A directory holds `wav.scp`, `text`, `utt2spk` and `spk2utt`. If it also holds
`segments`, then `wav.scp` lists recordings instead of utterances. A file
`reco2file_and_channel` tells the file and the channel of each recording. Every file is
UTF-8 and has an id and its value on each line, sorted as by `LC_ALL=C sort`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import (
    Table,
    line_of,
    one_field,
    read_table,
    same_ids,
    write_table,
)
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
        check_spk2utt(path / "spk2utt", group_by_speaker(data.utt2spk))
        return data

    def check(self, path: Path) -> None:
        """Check that the files agree.

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
        write_table(directory / "spk2utt", group_by_speaker(self.utt2spk))
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


def group_by_speaker(utt2spk: Table) -> dict[str, str]:
    """Return the sorted utterances of each speaker, joined by blanks."""
    utterances: dict[str, list[str]] = {}
    for utt in sorted(utt2spk):
        utterances.setdefault(utt2spk[utt], []).append(utt)
    return {speaker: " ".join(utts) for speaker, utts in utterances.items()}


def check_starts_with_speaker(path: Path, utt2spk: Table) -> None:
    """Check that the id of each utterance starts with the id of its speaker.

    Raises:
        InputError: One doesn't; the message names its line.
    """
    for utt, speaker in utt2spk.items():
        if not utt.startswith(speaker):
            where = line_of(path, "utt2spk", utt2spk, utt)
            raise InputError(
                f"{where}: utterance {utt} must start with its speaker, {speaker}"
            )


def check_spk2utt(path: Path, expected: Table) -> None:
    """Check that the file `path` groups the utterances as `expected`.

    Raises:
        InputError: It doesn't, or can't be read.
    """
    found = read_table(path, str)
    for number, speaker in enumerate(sorted({*found, *expected}), start=1):
        utts = found.get(speaker, "").split()
        if utts != expected.get(speaker, "").split():
            raise InputError(
                f"{path}:{number}: speaker {speaker}: expected the utterances that "
                "utt2spk gives this speaker, sorted"
            )


@dataclass(frozen=True)
class ArkPlace:
    """The name of an utterance's file, its channel, and its start in seconds."""

    file: str
    channel: str
    start: float


def read_places(path: Path) -> dict[str, ArkPlace]:
    """Read the place of each utterance of a data directory.

    Without `segments` each utterance is a recording of its own. Without
    `reco2file_and_channel` each recording is a file with one channel, called A.

    Raises:
        InputError: The directory is bad in one of the ways that `DataDir.read` names.
    """
    data = DataDir.read(path)
    places = {}
    for utterance in data.text:
        segment = data.segments[utterance] if data.segments else None
        recording = segment.recording if segment else utterance
        if data.channels:
            source = data.channels[recording]
        else:
            source = FileChannel(recording, CHANNELS[0])
        start = segment.start if segment else 0.0
        places[utterance] = ArkPlace(source.file, source.channel, start)
    return places


@dataclass(frozen=True)
class Utterance:
    """A stretch of one channel (A, the first, or B), and its words.

    Start and end are in seconds. The id starts with the side, as in
    `sw02001-A_000098-001156` of the recording `sw02001`.
    """

    id: str
    recording: str
    channel: str
    start: float
    end: float
    text: str

    @property
    def side(self) -> str:
        """Return the conversation side, as `sw02001-A`; it stands for the speaker."""
        return f"{self.recording}-{self.channel}"


@dataclass(frozen=True)
class SpeechSet:
    """A set's utterances, and where their recordings are.

    Attributes:
        audio: The path of each recording; may hold more than the utterances need.
        utterances: The utterances, sorted by id.
    """

    name: str
    audio: dict[str, Path]
    utterances: tuple[Utterance, ...]


def utterance_id(side: str, start: float, end: float) -> str:
    """Return Kaldi's id of a segment: the side, then start and end in centiseconds."""
    return f"{side}_{centiseconds(start):06d}-{centiseconds(end):06d}"


def centiseconds(seconds: float) -> int:
    """Round half up, as Kaldi's scripts do; Python's `round` would round to even."""
    return int(100 * seconds + 0.5)


def to_data_dir(speech: SpeechSet) -> DataDir:
    """Describe a set as a Kaldi data directory.

    Each recording of the directory is a conversation side. Two sides share a file, and
    `reco2file_and_channel` says which channel each of them is.

    Raises:
        InputError: Two utterances have the same id.
    """
    for before, after in pairwise(speech.utterances):
        if before.id == after.id:
            raise InputError(f"{speech.name}: two utterances are called {after.id}")
    sides = {u.side: u for u in speech.utterances}
    return DataDir(
        wav={side: str(speech.audio[u.recording]) for side, u in sides.items()},
        text={u.id: u.text for u in speech.utterances},
        utt2spk={u.id: u.side for u in speech.utterances},
        segments={u.id: Segment(u.side, u.start, u.end) for u in speech.utterances},
        channels={
            side: FileChannel(u.recording, u.channel) for side, u in sides.items()
        },
    )


def summarize(sets: Sequence[SpeechSet]) -> str:
    """Return a table with a row for each set; the first set gives the vocabulary.

    The columns are conversations, utterances, words, hours of speech, different words,
    and the share of words that the first set doesn't have (out of vocabulary).
    """
    known = {
        word for utterance in sets[0].utterances for word in utterance.text.split()
    }
    lines = [
        f"{'set':<16} {'conv.':>6} {'utts':>7} {'words':>8} {'hours':>7} "
        f"{'vocab.':>7} {'OOV %':>6}"
    ]
    lines += [_row(each.name, each.utterances, known) for each in sets]
    return "\n".join(lines)


def _row(name: str, utterances: Iterable[Utterance], known: set[str]) -> str:
    utterances = list(utterances)
    words = [word for utterance in utterances for word in utterance.text.split()]
    conversations = len({utterance.recording for utterance in utterances})
    hours = sum(utterance.end - utterance.start for utterance in utterances) / 3600
    unknown = 100 * sum(word not in known for word in words) / max(len(words), 1)
    return (
        f"{name:<16} {conversations:>6} {len(utterances):>7} {len(words):>8} "
        f"{hours:>7.3f} {len(set(words)):>7} {unknown:>6.2f}"
    )
