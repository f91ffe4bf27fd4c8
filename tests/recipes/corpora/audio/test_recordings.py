"""Recordings: the right samples of the right channel, from each kind of file."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.recordings import open_audio, open_recording
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter

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


@pytest.mark.parametrize("write", WRITERS)
def test_the_only_channel_needs_no_name(
    write: Callable[[Path, Samples], None], tmp_path: Path
) -> None:
    write(tmp_path / "call", noise(channels=1))
    for channel in (None, "A"):
        np.testing.assert_array_equal(
            read(tmp_path / "call", channel), noise(channels=1)[:, 0]
        )


def test_mulaw_sphere_as_libsndfile_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "call.sph"
    soundfile.write(path, noise(), RATE, format="NIST", subtype="ULAW")
    expected, _ = soundfile.read(path, dtype="int16")
    for index, channel in enumerate("AB"):
        np.testing.assert_array_equal(read(path, channel), expected[:, index])


def test_both_channels_of_one_opening(tmp_path: Path) -> None:
    write_pcm_sphere(tmp_path / "call.sph", noise())
    with open_audio(str(tmp_path / "call.sph"), RATE) as audio:
        assert (audio.channels, audio.length) == (2, 1000)
        for index, channel in enumerate("AB"):
            samples = audio.recording(channel).read(0, 1000)
            np.testing.assert_array_equal(samples, noise()[:, index])


def test_a_wav_in_an_ark(tmp_path: Path) -> None:
    with WavArkWriter(tmp_path / "a.ark") as ark:
        ark["first"] = (RATE, noise(10)[:, 0])
        ark["second"] = (RATE, noise()[:, 0])
    with open_recording(ark.locations["second"], RATE) as recording:
        np.testing.assert_array_equal(recording.read(3, 50), noise()[3:50, 0])


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


BAD_FILES: dict[str, tuple[Callable[[Path], object], str | None, str]] = {
    "missing": (lambda path: None, None, "no such audio file"),
    "directory": (Path.mkdir, None, "no such audio file"),
    "empty": (Path.touch, None, "not readable audio"),
    "text": (lambda path: path.write_text("hi\n" * 99), None, "not readable audio"),
    "wav without its end": (damaged(write_wav, -9), "A", "truncated"),
    "wav header cut": (damaged(write_wav, 20), "A", "truncated"),
    "four bytes of a wav": (damaged(write_wav, 4), "A", "no wav starts"),
    "flac without its end": (damaged(write_flac, -500), "A", "not readable audio"),
    "sphere without its end": (damaged(write_pcm_sphere, -9), "A", ""),
    "sphere header cut": (damaged(write_pcm_sphere, 600), "A", ""),
    "seven bytes of a sphere": (damaged(write_pcm_sphere, 7), "A", ""),
    "wav of 16 kHz": (of_form(16000, 1, "WAV"), None, "expected 8000 Hz, got 16000"),
    "sphere of 16 kHz": (of_form(16000, 2, "sphere"), "A", "expected 8000 Hz, got 1"),
    "no channel named": (of_form(RATE, 2, "sphere"), None, "has 2 channels: list it"),
    "no channel B": (of_form(RATE, 1, "sphere"), "B", "has no channel B, only 1"),
    "no channel B in a wav": (of_form(RATE, 1, "WAV"), "B", "has no channel B, only 1"),
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


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("none.ark:4", "cannot be read"),
        ("a.ark:0", "no wav starts"),
        ("a.ark:99999", "no wav starts"),
        ("cut.ark:2", "truncated"),
    ],
)
def test_bad_ark(location: str, message: str, tmp_path: Path) -> None:
    with WavArkWriter(tmp_path / "a.ark") as ark:
        ark["a"] = (RATE, noise()[:, 0])
    (tmp_path / "cut.ark").write_bytes((tmp_path / "a.ark").read_bytes()[:-5])
    with (
        pytest.raises(InputError, match=rf"{location}: .*{message}"),
        open_recording(str(tmp_path / location), RATE),
    ):
        pass
