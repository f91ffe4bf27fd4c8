"""Formatting: from recordings and segments to one ark of utterances."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from espnet_distopt.data.arks import (
    Samples,
    WavArkWriter,
    check_whole,
    is_in_ark,
    read_wav,
)
from espnet_distopt.data.kaldi_dir import (
    CHANNELS,
    DataDir,
    Segment,
    whole_directory,
    write_table,
)
from espnet_distopt.errors import InputError

OVERSHOOT_SECONDS = 0.5
"""How far a segment may reach beyond its recording; the rest is cut off."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which utterances are kept: those with words, of a duration in seconds."""

    min_seconds: float = 0.1
    max_seconds: float = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds <= self.max_seconds:
            raise InputError(
                f"expected 0 <= min_seconds <= max_seconds, got {self.min_seconds} and "
                f"{self.max_seconds}"
            )

    def objection(self, seconds: float, text: str) -> str | None:
        """Why an utterance is dropped, or None."""
        if seconds < self.min_seconds:
            return f"shorter than {self.min_seconds} s"
        if seconds > self.max_seconds:
            return f"longer than {self.max_seconds} s"
        return None if text else "without words"


@dataclass(frozen=True)
class Formatted:
    """What was written: utterances, their seconds, and the dropped ones by reason."""

    utterances: int
    seconds: float
    dropped: Counter[str]


@dataclass(frozen=True)
class Recording:
    """One channel of speech.

    Attributes:
        length: in samples.
        read: gives the samples from the first up to the second index, shape (time,).
    """

    length: int
    read: Callable[[int, int], Samples]


def format_data(
    source: Path,
    target: Path,
    *,
    limits: Limits | None,
    sample_rate: int = 8000,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Formatted:
    """Write a dump directory: the utterances of a data directory, in one ark.

    Args:
        source: data directory.
        target: dump directory; replaced whole or not at all.
        limits: which utterances to keep, or None for all.
        sample_rate: that the recordings must have, in Hz.
        progress: is told how many utterances are done, of how many.

    Raises:
        InputError: a bad data directory, an audio file that is unreadable or of another
            rate, a segment outside its recording, or no utterance left.
    """
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: must be another directory than the source")
    data = DataDir.read(source)
    words = {utt: " ".join(text.split()) for utt, text in data.text.items()}
    samples_of: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    with whole_directory(target) as new:
        with WavArkWriter(new / "wav.ark", named=target / "wav.ark") as ark:
            utterances = _read_utterances(data, source, sample_rate)
            for done, (utt, samples) in enumerate(utterances, start=1):
                seconds = len(samples) / sample_rate
                objection = limits.objection(seconds, words[utt]) if limits else None
                if objection:
                    dropped[objection] += 1
                elif len(samples) == 0:
                    raise InputError(f"{source}: utterance {utt} has no samples")
                else:
                    ark[utt] = (sample_rate, samples)
                    samples_of[utt] = len(samples)
                progress(done, len(words))
        if not samples_of:
            raise InputError(f"{source}: no utterance is left: {_listed(dropped)}")
        DataDir(
            wav=ark.locations,
            text={utt: words[utt] for utt in samples_of},
            utt2spk={utt: data.utt2spk[utt] for utt in samples_of},
        ).write_files(new, target)
        write_table(new / "utt2num_samples", samples_of)
    return Formatted(len(samples_of), sum(samples_of.values()) / sample_rate, dropped)


@contextmanager
def open_recording(
    location: str, sample_rate: int, channel: str | None = None
) -> Iterator[Recording]:
    """Open an audio file, or a wav in an ark.

    Args:
        location: path, or `path.ark:offset`.
        sample_rate: that it must have, in Hz.
        channel: `A` or `B`; None: it must have one channel.

    Raises:
        InputError: it is missing or unreadable, or has another rate or no such channel.
    """
    if is_in_ark(location):
        rate, samples = read_wav(location)
        _check_form(location, rate, sample_rate, 1, channel)
        yield Recording(len(samples), lambda start, stop: samples[start:stop])
        return
    if not Path(location).is_file():
        raise InputError(f"{location}: no such audio file")
    hint = _check_header(location)
    try:
        with soundfile.SoundFile(location) as file:
            _check_form(location, file.samplerate, sample_rate, file.channels, channel)
            column = 0 if channel is None else CHANNELS.index(channel)
            yield Recording(
                file.frames, lambda start, stop: _read(file, start, stop, column)
            )
    except soundfile.LibsndfileError as error:
        raise InputError(
            f"{location}: not readable audio: {error.error_string}{hint}"
        ) from None


def _read(file: soundfile.SoundFile, start: int, stop: int, column: int) -> Samples:
    file.seek(start)
    if file.subtype not in ("FLOAT", "DOUBLE"):
        samples = file.read(stop - start, dtype="int16", always_2d=True)
    else:  # libsndfile does not scale floats to integers
        values = file.read(stop - start, dtype="float64", always_2d=True)
        samples = np.clip(np.rint(values * 32768), -32768, 32767).astype(np.int16)
    if len(samples) < stop - start:
        raise InputError(f"{file.name}: the file ends early: it is truncated")
    return np.ascontiguousarray(samples[:, column])


def _check_form(
    location: str, rate: int, sample_rate: int, channels: int, channel: str | None
) -> None:
    if rate != sample_rate:
        raise InputError(f"{location}: expected {sample_rate} Hz, got {rate} Hz")
    if channel is None and channels != 1:
        raise InputError(
            f"{location}: has {channels} channels: list it in reco2file_and_channel"
        )
    if channel is not None and CHANNELS.index(channel) >= channels:
        raise InputError(f"{location}: has no channel {channel}, only {channels}")


def _check_header(location: str) -> str:
    """Refuse a truncated wav; return what to say if libsndfile cannot read the file."""
    try:
        with open(location, "rb") as file:
            start = file.read(7)
            if start.startswith(b"RIFF"):
                check_whole(file, 0, location)
    except OSError as error:
        raise InputError(f"{location}: cannot be read: {error.strerror}") from None
    if start == b"NIST_1A":
        return " (SPHERE compressed by shorten? decompress it, as with sph2pipe)"
    return ""


def _read_utterances(
    data: DataDir, source: Path, sample_rate: int
) -> Iterator[tuple[str, Samples]]:
    """Read every utterance, opening each recording once."""
    segments = data.segments or dict.fromkeys(data.wav)
    spans: dict[str, list[tuple[str, Segment | None]]] = {}
    for utt, segment in segments.items():
        recording = segment.recording if segment else utt
        spans.setdefault(recording, []).append((utt, segment))
    for name in sorted(spans):
        channel = data.channels[name].channel if data.channels else None
        with open_recording(data.wav[name], sample_rate, channel) as recording:
            for utt, segment in spans[name]:
                where = f"{source / 'segments'}: utterance {utt}"
                start, stop = _span(segment, recording.length, sample_rate, where)
                yield utt, recording.read(start, stop)


def _span(
    segment: Segment | None, length: int, sample_rate: int, where: str
) -> tuple[int, int]:
    if segment is None:
        return 0, length
    start, stop = round(segment.start * sample_rate), round(segment.end * sample_rate)
    if start >= length or stop > length + OVERSHOOT_SECONDS * sample_rate:
        raise InputError(
            f"{where}: ends at {segment.end} s, but recording {segment.recording} is "
            f"{length / sample_rate} s long"
        )
    return start, min(stop, length)


def _listed(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items())
