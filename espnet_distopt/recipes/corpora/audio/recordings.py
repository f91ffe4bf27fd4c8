"""Opens recordings: SPHERE files, files that libsndfile reads, and wavs in arks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import SphereFile
from espnet_distopt.recipes.corpora.kaldi.arks import (
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
        location: Its path, or `path.ark:offset`.
        channels: The number of channels.
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

    Args:
        location: The path, or `path.ark:offset`.
        sample_rate: The rate that it must have, in Hz.

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
            yield AudioFile(
                location,
                file.channels,
                file.frames,
                lambda start, stop, channel: _read(file, start, stop, channel),
            )


@contextmanager
def _explained(location: str) -> Iterator[None]:
    try:
        yield
    except soundfile.LibsndfileError as error:
        raise InputError(
            f"{location}: not readable audio: {error.error_string}"
        ) from None


def _read(file: soundfile.SoundFile, start: int, stop: int, channel: int) -> Samples:
    floats = file.subtype in ("FLOAT", "DOUBLE")
    with _explained(file.name):
        file.seek(start)
        samples = file.read(
            stop - start, dtype="float64" if floats else "int16", always_2d=True
        )
    if floats:  # libsndfile does not scale floats to integers
        samples = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    if len(samples) < stop - start:
        raise InputError(f"{file.name}: the file ends early: it is truncated")
    return np.ascontiguousarray(samples[:, channel])


def _check_rate(location: str, rate: int, sample_rate: int) -> None:
    if rate != sample_rate:
        raise InputError(f"{location}: expected {sample_rate} Hz, got {rate} Hz")


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
