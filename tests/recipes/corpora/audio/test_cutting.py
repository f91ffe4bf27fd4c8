"""Cutting: the right samples of each utterance, files opened once, and limits."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.formatting import format_data_command as main
from espnet_distopt.recipes.corpora.audio import formatting, shorten
from espnet_distopt.recipes.corpora.audio.formatting import Limits, format_data
from espnet_distopt.recipes.corpora.audio.recordings import AudioFile, open_audio
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter, read_wav
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir, FileChannel, Segment
from tests.recipes.corpora.audio.shorten_encoder import Encoder
from tests.refusal import error_of

RATE = 8000


def noise(seconds: float, seed: int = 0, channels: int = 1) -> Samples:
    """Draw samples of shape (time,) or (time, channels)."""
    shape = (round(seconds * RATE), channels) if channels > 1 else round(seconds * RATE)
    return np.random.default_rng(seed).integers(-9000, 9000, shape).astype(np.int16)


def one_speaker(wav: dict[str, str], text: dict[str, str] | None = None) -> DataDir:
    words = text or dict.fromkeys(wav, "hi there")
    return DataDir(wav=wav, text=words, utt2spk=dict.fromkeys(words, "ann"))


def dumped(target: Path) -> dict[str, Samples]:
    data = DataDir.read(target)
    lengths = dict(line.split() for line in (target / "utt2num_samples").open())
    samples = {utt: read_wav(where) for utt, where in data.wav.items()}
    assert {rate for rate, _ in samples.values()} == {RATE}
    assert {utt: str(len(wav)) for utt, (_, wav) in samples.items()} == lengths
    return {utt: wav for utt, (_, wav) in samples.items()}


def conversation(
    tmp_path: Path, b_end: float = 3.0, channels: dict[str, FileChannel] | None = None
) -> Path:
    """Make a conversation: 3 s of two-channel mu-law SPHERE, three segments."""
    path = tmp_path / "c1.sph"
    soundfile.write(path, noise(3, channels=2), RATE, format="NIST", subtype="ULAW")
    DataDir(
        wav={"c1-A": str(path), "c1-B": str(path)},
        text={"c1-A-2": "b", "c1-A-1": "a", "c1-B-1": "c"},
        utt2spk={"c1-A-1": "c1-A", "c1-A-2": "c1-A", "c1-B-1": "c1-B"},
        segments={
            "c1-A-1": Segment("c1-A", 2.0, 2.5),
            "c1-A-2": Segment("c1-A", 0.25, 1.000125),
            "c1-B-1": Segment("c1-B", 1.0, b_end),
        },
        channels=channels or {f"c1-{c}": FileChannel("c1", c) for c in "AB"},
    ).write(tmp_path / "data")
    return path


@pytest.mark.parametrize("b_end", [3.0, 3.4])
def test_segments_of_a_two_channel_file(b_end: float, tmp_path: Path) -> None:
    whole, _ = soundfile.read(conversation(tmp_path, b_end), dtype="int16")
    format_data(tmp_path / "data", tmp_path / "dump", limits=Limits())
    found = dumped(tmp_path / "dump")
    np.testing.assert_array_equal(found["c1-A-1"], whole[16000:20000, 0])
    np.testing.assert_array_equal(found["c1-A-2"], whole[2000:8001, 0])
    np.testing.assert_array_equal(found["c1-B-1"], whole[8000:, 1])
    assert not (tmp_path / "dump" / "segments").exists()
    assert (tmp_path / "dump" / "spk2utt").read_text() == (
        "c1-A c1-A-1 c1-A-2\nc1-B c1-B-1\n"
    )


def test_a_file_is_opened_once_for_both_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = conversation(tmp_path)
    opened = []

    def open_and_count(location: str, rate: int) -> AbstractContextManager[AudioFile]:
        opened.append(location)
        return open_audio(location, rate)

    monkeypatch.setattr(formatting, "open_audio", open_and_count)
    format_data(tmp_path / "data", tmp_path / "dump", limits=None)
    assert opened == [str(path)]


def write_shortened(path: Path, samples: Samples) -> None:
    """Write 16-bit SPHERE compressed by shorten."""
    header = (
        "NIST_1A\n   1024\nchannel_count -i 2\nsample_rate -i 8000\n"
        f"sample_count -i {len(samples)}\nsample_n_bytes -i 2\n"
        "sample_byte_format -s2 01\n"
        "sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    )
    path.write_bytes(header.encode().ljust(1024) + Encoder().encode(samples.T))


@pytest.mark.parametrize("nj", [1, 2])
def test_a_shortened_file_is_decoded_once(
    nj: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shortened(conversation(tmp_path), noise(3, channels=2))
    decoded = []
    decode = shorten.decode_shorten

    def decode_and_count(stream: bytes, where: str, **form: Any) -> Any:
        decoded.append(where)
        return decode(stream, where, **form)

    monkeypatch.setattr(shorten, "decode_shorten", decode_and_count)
    format_data(tmp_path / "data", tmp_path / "dump", limits=None, nj=nj)
    assert decoded == [str(tmp_path / "c1.sph")]  # one file: one process, for any nj
    found = dumped(tmp_path / "dump")
    np.testing.assert_array_equal(found["c1-A-1"], noise(3, channels=2)[16000:20000, 0])
    np.testing.assert_array_equal(found["c1-B-1"], noise(3, channels=2)[8000:, 1])


def test_segments_of_an_ark(tmp_path: Path) -> None:
    with WavArkWriter(tmp_path / "rec.ark") as ark:
        ark["rec"] = (RATE, noise(2))
    segments = {"ann-1": Segment("rec", 0.5, 1.0), "ann-2": Segment("rec", 1.0, 2.0)}
    data = one_speaker(ark.locations, {"ann-1": "a", "ann-2": "b"})
    replace(data, segments=segments).write(tmp_path / "data")
    format_data(tmp_path / "data", tmp_path / "dump", limits=Limits())
    found = dumped(tmp_path / "dump")
    np.testing.assert_array_equal(found["ann-1"], noise(2)[4000:8000])
    np.testing.assert_array_equal(found["ann-2"], noise(2)[8000:])


def mixed(tmp_path: Path) -> None:
    """Make utterances of 0.05, 0.1, 1 and 1.1 s, and one of 1 s without words."""
    wav = {}
    for number, seconds in enumerate((0.05, 0.1, 1.0, 1.1, 1.0)):
        wav[f"ann-{number}"] = str(tmp_path / f"{number}.wav")
        soundfile.write(wav[f"ann-{number}"], noise(seconds), RATE)
    text = {**dict.fromkeys(wav, "hi  there"), "ann-4": "\u00a0"}
    one_speaker(wav, text).write(tmp_path / "data")


def test_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed(tmp_path)
    main([str(tmp_path / "data"), str(tmp_path / "dump"), "--max_seconds", "1"])
    assert list(dumped(tmp_path / "dump")) == ["ann-1", "ann-2"]
    assert (tmp_path / "dump" / "text").read_text() == (
        "ann-1 hi there\nann-2 hi there\n"
    )
    printed = capsys.readouterr().out
    assert "2 utterances" in printed
    for reason in ("1 shorter than 0.1 s", "1 longer than 1.0 s", "1 without words"):
        assert f"dropped {reason}\n" in printed


def test_keep_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed(tmp_path)
    main([str(tmp_path / "data"), str(tmp_path / "dump"), "--keep_all"])
    assert list(dumped(tmp_path / "dump")) == [f"ann-{number}" for number in range(5)]
    assert DataDir.read(tmp_path / "dump").text["ann-4"] == ""
    assert "dropped" not in capsys.readouterr().out


def hundred(tmp_path: Path, *damaged: str) -> None:
    """Make 100 files of two utterances; of the damaged ones only the first is there."""
    names = [f"r{number:02}" for number in range(100)]
    segments = {}
    for name in names:
        path = tmp_path / f"{name}.flac"
        soundfile.write(path, noise(2), RATE)
        if name in damaged:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        segments[f"{name}-1"] = Segment(name, 0.0, 0.5)
        segments[f"{name}-2"] = Segment(name, 1.5, 2.0)
    data = one_speaker(
        {name: str(tmp_path / f"{name}.flac") for name in names},
        dict.fromkeys(segments, "hi"),
    )
    data = replace(data, segments=segments, utt2spk={u: u[:3] for u in segments})
    data.write(tmp_path / "data")


@pytest.mark.parametrize("nj", ["1", "2"])
def test_one_percent_of_a_training_set_may_be_unreadable(
    nj: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hundred(tmp_path, "r10")
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), "--nj", nj]
    main(command)
    left = [f"r{number:02}-{half}" for number in range(100) for half in (1, 2)]
    left = [name for name in left if not name.startswith("r10-")]
    assert list(dumped(tmp_path / "dump")) == left
    told = f"left out 1 recording(s) that cannot be read, the first: {tmp_path}/r10.fla"
    assert told in capsys.readouterr().out
    error = error_of(main, [*command, "--keep_all"], capsys)
    assert error.startswith(f"{tmp_path}/r10.flac: ")


@pytest.mark.parametrize("nj", ["1", "2"])
def test_more_than_one_percent_may_not_be_unreadable(
    nj: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hundred(tmp_path, "r10", "r60")
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), "--nj", nj]
    error = error_of(main, command, capsys)
    assert error.startswith(f"{tmp_path}/r60.flac: ")
    assert "(like 1 before it, which may be left out, but no more: " in error
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize("limits", [(-1, 2), (3, 2), (float("nan"), 2)])
def test_bad_limits(limits: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="0 <= min_seconds <= max_seconds"):
        Limits(min_seconds=limits[0], max_seconds=limits[1])
