"""Recordings: the right samples of the right channel, from each kind of file."""

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.recordings import open_recording
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.kaldi.arks import Samples

RATE = 8000


def noise(time: int = 1000, channels: int = 2) -> Samples:
    """Draw samples of shape (time, channels)."""
    drawn = np.random.default_rng(time).integers(-9000, 9000, (time, channels))
    return drawn.astype(np.int16)


def read(path: Path, channel: str | None = None) -> Samples:
    with open_recording(str(path), RATE, channel) as recording:
        return recording.read(0, recording.length)


def write_wav(path: Path, samples: Samples) -> None:
    soundfile.write(path, samples, RATE, format="WAV")


def write_flac(path: Path, samples: Samples) -> None:
    soundfile.write(path, samples, RATE, format="FLAC")


def write_pcm_sphere(path: Path, samples: Samples) -> None:
    soundfile.write(path, samples, RATE, format="NIST", subtype="PCM_16")


WRITERS = [write_wav, write_flac, write_pcm_sphere]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("channel", ["A", "B"])
def test_a_span_of_a_channel(
    write: Callable[[Path, Samples], None], channel: str, tmp_path: Path
) -> None:
    write(tmp_path / "call", noise())
    with open_recording(str(tmp_path / "call"), RATE, channel) as recording:
        assert recording.length == 1000
        expected = noise()[:, "AB".index(channel)]
        for start, stop in ((0, 1000), (400, 401), (17, 900), (5, 5)):  # any order
            found = recording.read(start, stop)
            assert found.dtype == np.int16
            np.testing.assert_array_equal(found, expected[start:stop])


def test_the_only_channel_needs_no_name(tmp_path: Path) -> None:
    write_pcm_sphere(tmp_path / "call", noise(channels=1))
    for channel in (None, "A"):
        found = read(tmp_path / "call", channel)
        np.testing.assert_array_equal(found, noise(channels=1)[:, 0])


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE", "PCM_24"])
def test_other_sample_formats_keep_the_scale(subtype: str, tmp_path: Path) -> None:
    samples = noise(channels=1)[:, 0]
    samples[:2] = (-32768, 32767)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples / 32768, RATE, subtype=subtype)
    np.testing.assert_array_equal(read(path), samples)


def test_loud_floats_are_clipped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([2.0, -2.0]), RATE, subtype="FLOAT")
    assert read(tmp_path / "a.wav").tolist() == [32767, -32768]


def loud(count: int = 24000) -> NDArray[np.float64]:
    """Make a clipped tone that swells, on which lossy codecs overshoot; (time,)."""
    t = np.arange(count) / RATE
    tone = np.sin(2 * np.pi * 310 * t) + np.sin(2 * np.pi * 930 * t + 1)
    clipped: NDArray[np.float64] = np.clip(tone * (1 + np.sin(9 * t)), -0.99, 0.99)
    return clipped


def encoded(kind: str, subtype: str | None = None, **how: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, loud(), RATE, subtype, format=kind, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "subtype", "overshoots"),
    [
        ("OGG", "VORBIS", True),
        ("OGG", "OPUS", True),
        ("MP3", None, True),
        ("FLAC", "PCM_24", False),
        ("WAV", "GSM610", False),  # libsndfile cannot seek in it
        ("WAV", "IMA_ADPCM", False),
        ("WAV", "PCM_U8", False),
        ("AIFF", "FLOAT", False),
        ("AU", "ALAW", False),
    ],
)
def test_a_codec_by_spans_and_clipped(
    kind: str, subtype: str | None, overshoots: bool, tmp_path: Path
) -> None:
    path = tmp_path / "call.mp3"  # the name of a bare MP3 tells libsndfile what it is
    path.write_bytes(encoded(kind, subtype))
    with soundfile.SoundFile(path) as file:
        floats = file.read(file.frames)
    assert (np.abs(floats).max() > 1) == overshoots
    expected = np.clip(np.rint(floats * 32768), -32768, 32767)
    with open_recording(str(path), RATE) as recording:
        assert recording.length == len(expected)
        for start, stop in ((0, recording.length), (9000, 9400), (70, 8100)):
            read = recording.read(start, stop)
            np.testing.assert_array_equal(read, expected[start:stop])


def mp3_with_tags(path: Path) -> None:
    picture = b"APIC" + struct.pack(">I", 5000) + bytes(2) + bytes(range(250)) * 20
    size = bytes([len(picture) >> 14, len(picture) >> 7 & 127, len(picture) & 127])
    tag = b"ID3\x03\0\0\0" + size + picture
    path.write_bytes(tag + encoded("MP3") + b"TAG".ljust(128))


def wav_of_size(said: int) -> Callable[[Path], object]:
    """Write a wav whose header says so many bytes of samples."""

    def make(path: Path) -> None:
        content = bytearray(encoded("WAV", "PCM_16"))
        at = content.index(b"data") + 4
        content[at : at + 4] = struct.pack("<I", said)
        path.write_bytes(content)

    return make


WHOLE: dict[str, Callable[[Path], object]] = {
    "MP3 with a picture before and a tag behind": mp3_with_tags,
    "wav from a pipe": wav_of_size(0xFFFFFFFF),
    "wav with a little behind": lambda path: path.write_bytes(
        encoded("WAV", "PCM_16") + bytes(700)
    ),
    "OGG from a pipe": lambda path: path.write_bytes(encoded("OGG", "OPUS")),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_all_of_a_whole_file(kind: str, tmp_path: Path) -> None:
    WHOLE[kind](tmp_path / "call.x")
    assert len(read(tmp_path / "call.x")) == len(loud())


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    write_wav(path, noise(channels=1))
    with open_recording(str(path), RATE) as recording:
        os.truncate(path, 200)
        with pytest.raises(InputError, match=r"a\.wav: .*truncated"):
            recording.read(0, recording.length)


def damaged(
    write: Callable[[Path, Samples], None], keep: int
) -> Callable[[Path], object]:
    """Keep the first bytes of a file; negative: all but the last."""

    def make(path: Path) -> None:
        write(path, noise())
        path.write_bytes(path.read_bytes()[:keep])

    return make


def of_form(rate: int, channels: int, kind: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        if kind == "sphere":
            write_sphere(path, noise(100, channels), rate)
        else:
            soundfile.write(path, noise(100, channels), rate, format=kind)

    return make


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def floats(*values: float) -> Callable[[Path], object]:
    return lambda path: soundfile.write(
        path, np.array(values, float), RATE, "FLOAT", format="WAV"
    )


def flac_without_length(path: Path) -> None:
    content = bytearray(encoded("FLAC"))
    content[21] &= 0xF0  # the low bits and the next four bytes are the length
    content[22:26] = bytes(4)
    path.write_bytes(content)


MP3, OPUS = encoded("MP3", bitrate_mode="VARIABLE"), encoded("OGG", "OPUS")
BAD_FILES: dict[str, tuple[Callable[[Path], object], str | None, str]] = {
    "missing": (lambda path: None, None, "no such audio file"),
    "directory": (Path.mkdir, None, "no such audio file"),
    "empty": (Path.touch, None, "not readable audio"),
    "text": (lambda path: path.write_text("hi\n" * 99), None, "not readable audio"),
    "wav without its end": (damaged(write_wav, -9), "A", "truncated"),
    "wav header cut": (damaged(write_wav, 20), "A", "truncated"),
    "four bytes of a wav": (damaged(write_wav, 4), "A", "no wav starts"),
    "flac without its end": (damaged(write_flac, -500), "A", "not readable audio"),
    "two MP3s": (holding(MP3 * 2), None, "24000 samples can be decoded"),
    "MP3 without a length": (
        holding(MP3.replace(b"Xing", b"????")),
        None,
        "samples can be decoded: it is several files in one, or an MP3 that does not",
    ),
    "two oggs": (holding(OPUS * 2), None, "24000 samples can be decoded"),
    "ogg without its end": (holding(OPUS[:-300]), None, "truncated"),
    "MP3 without its end": (holding(encoded("MP3")[:-3000]), None, "truncated"),
    "flac from a pipe": (flac_without_length, None, "does not say how long it is"),
    "wav that was never finished": (wav_of_size(0), None, "was never finished"),
    "wav that says too little": (wav_of_size(2000), None, "the header describes 2044 "),
    "wav that says too much": (wav_of_size(90000), None, "90000 bytes, but 48000 are"),
    "NaN": (floats(0.1, np.nan), None, "NaN or infinite"),
    "floats of another scale": (
        floats(3000.0, -90.0),
        None,
        "sample of 3000 where 1 is",
    ),
    "wav of 16 kHz": (of_form(16000, 1, "WAV"), None, "expected 8000 Hz, got 16000"),
    "no channel named": (of_form(RATE, 2, "sphere"), None, "has 2 channels: list it"),
    "no channel B": (of_form(RATE, 1, "sphere"), "B", "has no channel B, only 1"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file(kind: str, tmp_path: Path) -> None:
    make, channel, message = BAD_FILES[kind]
    path = tmp_path / "call.x"
    make(path)
    with pytest.raises(InputError) as error:
        read(path, channel)
    assert str(error.value).startswith(f"{path}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
