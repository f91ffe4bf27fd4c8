"""Arks of wavs: exact samples back, Kaldi's layout, and damage noticed."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.kaldi.arks import (
    Samples,
    WavArkWriter,
    is_in_ark,
    read_wav,
)

SPEECH: dict[str, Samples] = {
    "ann-1": np.array([0, 1, -1, 32767, -32768], np.int16),
    "bob-é": np.arange(-400, 400, dtype=np.int16),
    "cat-3": np.zeros(1, np.int16),
}


def write(path: Path, rate: int = 8000) -> dict[str, str]:
    with WavArkWriter(path) as ark:
        for key, samples in SPEECH.items():
            ark[key] = (rate, samples)
    return ark.locations


@pytest.mark.parametrize("name", ["wav.ark", "a b,c[1]:2.ark"])
def test_samples_come_back(name: str, tmp_path: Path) -> None:
    locations = write(tmp_path / name)
    assert list(locations) == list(SPEECH)
    for key, location in locations.items():
        rate, samples = read_wav(location)
        assert rate == 8000
        np.testing.assert_array_equal(samples, SPEECH[key])


def test_layout_is_kaldis(tmp_path: Path) -> None:
    locations = write(tmp_path / "wav.ark")
    content = (tmp_path / "wav.ark").read_bytes()
    for key, location in locations.items():
        offset = int(location.rpartition(":")[2])
        assert content[:offset].endswith(f"{key} ".encode())
        assert content[offset:].startswith(b"AUDIO")
        length = content[offset + 5]
        assert content[offset + 6 + length :].startswith(b"RIFF")


def test_espnets_reader_reads_it(tmp_path: Path) -> None:
    kaldiio = pytest.importorskip("kaldiio")
    lines = [f"{key} {where}\n" for key, where in write(tmp_path / "w.ark").items()]
    (tmp_path / "wav.scp").write_text("".join(lines), encoding="utf-8")
    loaded = kaldiio.load_scp(str(tmp_path / "wav.scp"))
    assert set(loaded) == set(SPEECH)
    for key, expected in SPEECH.items():
        assert loaded[key][0] == 8000
        # floats in [-1, 1]: on integers, ESPnet's feature extraction fails
        np.testing.assert_array_equal(loaded[key][1], expected / 2**15)


def test_locations_carry_the_final_name(tmp_path: Path) -> None:
    with WavArkWriter(tmp_path / "new.ark", named=Path("dump/wav.ark")) as ark:
        ark["a"] = (8000, SPEECH["ann-1"])
    assert ark.locations == {"a": "dump/wav.ark:2"}


@pytest.mark.parametrize("cut", [1, 2, 45, 46])
def test_a_truncated_wav_is_an_error(cut: int, tmp_path: Path) -> None:
    locations = write(tmp_path / "wav.ark")
    content = (tmp_path / "wav.ark").read_bytes()
    (tmp_path / "wav.ark").write_bytes(content[:-cut])
    read_wav(locations["bob-é"])
    with pytest.raises(InputError, match=r"wav\.ark:\d+: .*(truncated|no wav starts)"):
        read_wav(locations["cat-3"])


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("{ark}:3", "no wav starts"),
        ("{ark}:999999", "no wav starts"),
        ("{ark}", r"expected path\.ark:offset"),
        ("{ark}x:6", "No such file"),
        ("{broken}:0", "cannot be read"),
        ("{stereo}:0", "expected 16-bit mono"),
    ],
)
def test_bad_location(location: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "wav.ark")
    content = (tmp_path / "wav.ark").read_bytes()
    wav = content[len("ann-1 ") :]
    (tmp_path / "broken").write_bytes(wav.replace(b"WAVE", b"EVAW"))
    stereo = bytearray(wav[wav.index(b"RIFF") :])
    stereo[22] = 2  # number of channels
    stereo[32] = 4  # bytes a frame
    (tmp_path / "stereo").write_bytes(stereo)
    names = {name: tmp_path / name for name in ("broken", "stereo")}
    with pytest.raises(InputError, match=message):
        read_wav(location.format(ark=tmp_path / "wav.ark", **names))


@pytest.mark.parametrize("entry", [True, False], ids=["AUDIO", "bare"])
@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "PCM_24", "PCM_32", "ULAW"])
def test_other_samples_are_an_error(kind: str, entry: bool, tmp_path: Path) -> None:
    """A float of 1.0 would become -32768, and 24 bits would lose 8."""
    content = io.BytesIO()
    soundfile.write(content, np.array([0.0, 1.0]), 8000, format="WAV", subtype=kind)
    wav = content.getvalue()
    start = b"AUDIO\x04" + len(wav).to_bytes(4, "little") if entry else b""
    (tmp_path / "wav.ark").write_bytes(start + wav)
    # The library itself reads few kinds of bare wavs.
    message = f"expected 16-bit mono .*, got {kind}" + ("" if entry else "|bytes_per_s")
    with pytest.raises(InputError, match=message):
        read_wav(f"{tmp_path}/wav.ark:0")


def test_a_bare_wav(tmp_path: Path) -> None:
    content = io.BytesIO()
    soundfile.write(content, SPEECH["bob-é"], 8000, format="WAV")
    (tmp_path / "wav.ark").write_bytes(b"x " + content.getvalue())
    rate, samples = read_wav(f"{tmp_path}/wav.ark:2")
    assert (rate, samples.dtype) == (8000, np.int16)
    np.testing.assert_array_equal(samples, SPEECH["bob-é"])


def test_only_16_bit_mono_is_written(tmp_path: Path) -> None:
    with WavArkWriter(tmp_path / "wav.ark") as ark:
        with pytest.raises(TypeError, match="16-bit mono"):
            ark["a"] = (8000, np.zeros(4))  # type: ignore[assignment]
        with pytest.raises(TypeError, match="16-bit mono"):
            ark["a"] = (8000, np.zeros((4, 2), np.int16))


def test_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kaldiio", "omniio", "omniio.kaldi"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="neither kaldiio nor omniio"):
        WavArkWriter(tmp_path / "wav.ark")
    assert not (tmp_path / "wav.ark").exists()


@pytest.mark.parametrize(
    ("location", "expected"),
    [("a.ark:0", True), ("b:c/a.ark:12", True), ("a.wav", False), ("a.ark:x", False)],
)
def test_is_in_ark(location: str, expected: bool) -> None:
    assert is_in_ark(location) is expected
