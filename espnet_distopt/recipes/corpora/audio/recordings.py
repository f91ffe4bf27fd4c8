"""Opens recordings: SPHERE files, files that libsndfile reads, and wavs in arks.

libsndfile is believed only as far as it can be. It estimates the length of some MP3s,
reads the first of several streams in a file, and takes what is there of a truncated
file. Where it has not read all of a file, the file is refused.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import SphereFile
from espnet_distopt.recipes.corpora.kaldi.arks import (
    UNKNOWN_LENGTH,
    Samples,
    check_whole,
    is_in_ark,
    read_wav,
)
from espnet_distopt.recipes.corpora.kaldi.directory import CHANNELS


@dataclass(frozen=True)
class Recording:
    """One channel of speech: the number of its samples, and a function to read them.

    It returns the samples from a first to a second index, shape (time,).
    """

    length: int
    read: Callable[[int, int], Samples]


@dataclass(frozen=True)
class AudioFile:
    """An open audio file.

    Attributes:
        length: The number of samples of each channel.
        read: Returns the samples from a first to a second index, shape (time,), of the
            channel with a third index.
    """

    location: str
    channels: int
    length: int
    read: Callable[[int, int, int], Samples]

    def recording(self, channel: str | None) -> Recording:
        """Return a channel: `A`, `B`, or None for the only one.

        Raises:
            InputError: There is no such channel, or more than one.
        """
        if channel is None and self.channels != 1:
            raise InputError(
                f"{self.location}: has {self.channels} channels: list it in "
                "reco2file_and_channel"
            )
        index = 0 if channel is None else CHANNELS.index(channel)
        if index >= self.channels:
            raise InputError(
                f"{self.location}: has no channel {channel}, only {self.channels}"
            )
        return Recording(self.length, lambda start, stop: self.read(start, stop, index))


@contextmanager
def open_recording(
    location: str, sample_rate: int, channel: str | None = None
) -> Iterator[Recording]:
    """Open one channel of an audio file, or a wav in an ark.

    Raises:
        InputError: It is missing or cannot be read, or has another rate or no such
            channel.
    """
    with open_audio(location, sample_rate) as audio:
        yield audio.recording(channel)


@contextmanager
def open_audio(location: str, sample_rate: int) -> Iterator[AudioFile]:
    """Open an audio file, or a wav in an ark, with all its channels.

    The sample rate, in Hz, is the one that it must have.

    Raises:
        InputError: It is missing or cannot be read, or has another rate.
    """
    if is_in_ark(location):
        rate, samples = read_wav(location)
        _check_rate(location, rate, sample_rate)
        yield AudioFile(
            location, 1, len(samples), lambda start, stop, _: samples[start:stop]
        )
    elif _is_sphere(location):
        with SphereFile(Path(location)) as sphere:
            header = sphere.header
            _check_rate(location, header.sample_rate, sample_rate)
            yield AudioFile(location, header.channels, header.samples, sphere.read)
    else:
        with _explained(location):
            file = soundfile.SoundFile(location)
        with file:
            _check_rate(location, file.samplerate, sample_rate)
            _check_report(location, file.extra_info)
            read, length = _reader(location, file)
            yield AudioFile(location, file.channels, length, read)


@contextmanager
def _explained(location: str) -> Iterator[None]:
    try:
        yield
    except soundfile.LibsndfileError as error:
        reason = error.error_string.strip() or "its samples cannot be decoded"
        raise InputError(f"{location}: not readable audio: {reason}") from None


_SAID = re.compile(
    r"^ *(?:RIFF|Riff size|data|FORM|SSND|BODY|Data Size) *: (\d+) \(should be (\d+)\)",
    re.MULTILINE | re.IGNORECASE,
)
_LOST = re.compile(r"marker.* at position (\d+)")
_LENGTH = re.compile(r"^Length : (\d+)", re.MULTILINE)


def _check_report(location: str, report: str) -> None:
    """Refuse a file in whose header libsndfile has corrected a length."""
    for said, found in _SAID.findall(report):
        if int(found) < int(said) < UNKNOWN_LENGTH:
            raise InputError(
                f"{location}: the header says {said} bytes, but {found} are there: it "
                "is truncated"
            )
    lost, length = _LOST.search(report), _LENGTH.search(report)
    # A little that no header describes is behind the samples of many a good file.
    if lost and length and int(lost[1]) < 0.9 * int(length[1]):
        raise InputError(
            f"{location}: the header describes {lost[1]} of {length[1]} bytes: it is "
            f"damaged, or was never finished: {_CONVERT}"
        )


_CODED = ("FLAC", "MP3", "OGG")
_CONVERT = "convert it, as with `ffmpeg -i IN OUT.wav`"
_EMPTY_TAG = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
_BEGINNINGS = (b"OggS\0\x02", b"fLaC\0\0\0\x22")
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN")
_JUNK = 1024  # bytes behind the last frame of an MP3
_PADDING = 2 * 1152  # samples by which an MP3's length may be wrong: two frames


def _reader(
    location: str, file: soundfile.SoundFile
) -> tuple[Callable[[int, int, int], Samples], int]:
    """Return what reads a span of a channel, and the length of the channels.

    A file without a place of its own for each sample is decoded whole, in its order.
    """
    if file.format in _CODED:
        whole = _decode_coded(location)
    elif not file.seekable() or file.subtype.startswith("MPEG"):
        whole = _decode(location, file)
    else:
        return lambda *span: _read(location, file, *span), file.frames
    return (
        lambda start, stop, channel: np.ascontiguousarray(whole[start:stop, channel]),
        len(whole),
    )


def _decode_coded(location: str) -> Samples:
    """Decode a file that is compressed as a stream; return shape (time, channels)."""
    content = Path(location).read_bytes()
    if content.startswith(b"\xff"):  # libsndfile would know it by its name only
        content = _EMPTY_TAG + content
    stream = io.BytesIO(content)
    with soundfile.SoundFile(stream) as file:
        samples = _decode(location, file)
        rest = content[stream.tell() :]
    several = any(content.count(each) > 1 for each in _BEGINNINGS)
    if several or (len(rest) > _JUNK and not rest.startswith(_TAGS) and any(rest)):
        raise InputError(
            f"{location}: only its first {len(samples)} samples can be decoded: it is "
            "several files in one, or an MP3 that does not say its length: "
            f"{_CONVERT}"
        )
    last = content.rfind(b"OggS")
    if content.startswith(b"OggS") and last + _ogg_page(content[last:]) > len(content):
        raise InputError(f"{location}: the file ends early: it is truncated")
    return samples


def _ogg_page(page: bytes) -> int:
    """Return the length of the page that starts there: header, table and segments."""
    segments = page[27 : 27 + page[26]] if len(page) > 26 else b""
    return 27 + len(segments) + sum(segments)


def _decode(location: str, file: soundfile.SoundFile) -> Samples:
    """Read a file from its start to its end; return shape (time, channels)."""
    if file.frames >= UNKNOWN_LENGTH:
        raise InputError(
            f"{location}: does not say how long it is, as if written to a pipe: "
            f"{_CONVERT}"
        )
    samples = _frames(location, file, file.frames)
    slack = _PADDING if file.subtype.startswith("MPEG") else 0
    if len(samples) < file.frames - slack:
        raise InputError(f"{location}: the file ends early: it is truncated")
    return samples


def _read(
    location: str, file: soundfile.SoundFile, start: int, stop: int, channel: int
) -> Samples:
    with _explained(location):
        file.seek(start)
    samples = _frames(location, file, stop - start)
    if len(samples) < stop - start:
        raise InputError(f"{location}: the file ends early: it is truncated")
    return np.ascontiguousarray(samples[:, channel])


_LOUDEST = 16.0
"""Of floats; beyond, they are no samples that a recording or a codec has made loud."""


def _frames(location: str, file: soundfile.SoundFile, count: int) -> Samples:
    """Read the next samples of all channels, shape (time, channels); clip them.

    The samples are read as floats, which libsndfile scales alike for all kinds of
    files. As integers it would not scale floats, and loud Vorbis and Opus would wrap
    around.
    """
    exact = file.subtype == "PCM_16"
    with _explained(location):
        read = file.read(count, "int16" if exact else "float32", always_2d=True)
    samples: Samples = read if exact else _scaled(location, read)
    return samples


def _scaled(location: str, floats: NDArray[np.float32]) -> Samples:
    peak = np.abs(floats).max(initial=0)
    if not np.isfinite(peak):
        raise InputError(f"{location}: has samples that are NaN or infinite")
    if peak > _LOUDEST:
        raise InputError(
            f"{location}: has a sample of {peak:g} where 1 is full scale: its floats "
            "have another scale, as that of 16-bit integers: divide them by theirs"
        )
    clipped: Samples = np.clip(np.rint(floats * 32768), -32768, 32767).astype(np.int16)
    return clipped


def _check_rate(location: str, rate: int, sample_rate: int) -> None:
    if rate != sample_rate:
        raise InputError(
            f"{location}: expected {sample_rate} Hz, got {rate} Hz: convert it, or say "
            f"that all are so (--sample_rate {rate}; --fs {rate} of a recipe)"
        )


def _is_sphere(location: str) -> bool:
    """Tell whether a file is SPHERE, and refuse a truncated wav, as no reader does."""
    if not Path(location).is_file():
        raise InputError(f"{location}: no such audio file")
    try:
        with open(location, "rb") as file:
            start = file.read(7)
            if start.startswith(b"RIFF"):
                check_whole(file, 0, location)
    except OSError as error:
        raise InputError(f"{location}: cannot be read: {error.strerror}") from None
    return start == b"NIST_1A"
