"""Formatting: the right samples of the right channel, limits, and bad audio named."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet_distopt.bin.format_data import main
from espnet_distopt.data.arks import Samples, WavArkWriter, read_wav
from espnet_distopt.data.formatting import Limits, format_data, open_recording
from espnet_distopt.data.kaldi_dir import DataDir, FileChannel, Segment
from espnet_distopt.errors import InputError

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


@pytest.fixture
def files(tmp_path: Path) -> DataDir:
    """Make a data directory of three files, a second and a half each."""
    wav = {}
    for number in range(3):
        wav[f"ann-{number}"] = str(tmp_path / f"{number}.wav")
        soundfile.write(wav[f"ann-{number}"], noise(1.5, number), RATE)
    data = one_speaker(wav)
    data.write(tmp_path / "data")
    return data


def test_whole_files(files: DataDir, tmp_path: Path) -> None:
    format_data(tmp_path / "data", tmp_path / "dump", limits=Limits())
    found = dumped(tmp_path / "dump")
    assert list(found) == list(files.wav)
    for number, utt in enumerate(files.wav):
        np.testing.assert_array_equal(found[utt], noise(1.5, number))


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


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE", "PCM_24"])
def test_other_sample_formats_keep_the_scale(subtype: str, tmp_path: Path) -> None:
    samples = noise(0.5)
    samples[:2] = (-32768, 32767)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples / 32768, RATE, subtype=subtype)
    with open_recording(str(path), RATE) as recording:
        np.testing.assert_array_equal(recording.read(0, len(samples)), samples)


def test_loud_floats_are_clipped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([2.0, -2.0]), RATE, subtype="FLOAT")
    with open_recording(str(tmp_path / "a.wav"), RATE) as recording:
        assert recording.read(0, 2).tolist() == [32767, -32768]


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


def garbage(path: Path) -> None:
    path.write_bytes(b"not audio at all" * 10)


def shortened(path: Path) -> None:
    header = "NIST_1A\n   1024\nchannel_count -i 1\nsample_rate -i 8000\n"
    header += "sample_coding -s26 ulaw,embedded-shorten-v2.00\nend_head\n"
    path.write_bytes(header.encode().ljust(1024) + b"ajkg\2")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_flac(path: Path) -> None:
    soundfile.write(path, noise(1.5), RATE, format="FLAC")
    path.write_bytes(path.read_bytes()[:-9000])


BAD_AUDIO = [
    (Path.unlink, "1.wav: no such audio file"),
    (garbage, "1.wav: not readable audio"),
    (shortened, "shorten?"),
    (cut, "1.wav: the file ends within this wav"),
    (cut_flac, "1.wav: not readable audio"),
    (lambda p: soundfile.write(p, noise(1), 16000), "expected 8000 Hz, got 16000 Hz"),
    (lambda p: soundfile.write(p, noise(1, 0, 2), RATE), "1.wav: has 2 channels"),
    (lambda p: soundfile.write(p, noise(0), RATE), "utterance ann-1 has no samples"),
]


@pytest.mark.parametrize(("damage", "message"), BAD_AUDIO)
def test_bad_audio_is_one_line(
    damage: Callable[[Path], object],
    message: str,
    files: DataDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    format_data(tmp_path / "data", tmp_path / "dump", limits=None)
    before = dumped(tmp_path / "dump")
    beside = {path.name for path in tmp_path.iterdir()}
    damage(tmp_path / "1.wav")
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "data"), str(tmp_path / "dump"), "--keep_all"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error
    # The earlier dump is still there and whole, and nothing lies beside it.
    assert dumped(tmp_path / "dump").keys() == before.keys()
    assert {path.name for path in tmp_path.iterdir()} <= beside


@pytest.mark.parametrize(
    ("b_end", "channels", "message"),
    [
        (3.6, None, "utterance c1-B-1: ends at 3.6 s, but recording c1-B is 3.0 s"),
        (2.0, {"c1-A": FileChannel("c1", "A")}, "c1-B is not in"),
    ],
)
def test_bad_conversation(
    b_end: float,
    channels: dict[str, FileChannel] | None,
    message: str,
    tmp_path: Path,
) -> None:
    conversation(tmp_path, b_end)
    if channels is not None:
        (tmp_path / "data" / "reco2file_and_channel").write_text("c1-A c1 A\n")
    with pytest.raises(InputError, match=message):
        format_data(tmp_path / "data", tmp_path / "dump", limits=None)


def test_no_channel_b_in_a_mono_file(tmp_path: Path) -> None:
    path = conversation(tmp_path)
    soundfile.write(path, noise(3), RATE, format="NIST", subtype="ULAW")
    with pytest.raises(InputError, match=r"c1\.sph: has no channel B"):
        format_data(tmp_path / "data", tmp_path / "dump", limits=None)


@pytest.mark.parametrize("limits", [(-1, 2), (3, 2), (float("nan"), 2)])
def test_bad_limits(limits: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="0 <= min_seconds <= max_seconds"):
        Limits(min_seconds=limits[0], max_seconds=limits[1])


def test_nothing_left(files: DataDir, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no utterance is left: 3 longer than 1\.0 s"):
        format_data(
            tmp_path / "data", tmp_path / "dump", limits=Limits(max_seconds=1.0)
        )
    assert not (tmp_path / "dump").exists()


def test_onto_itself(files: DataDir, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another directory"):
        format_data(tmp_path / "data", tmp_path / "data", limits=None)
    assert DataDir.read(tmp_path / "data") == files


def test_interrupted(files: DataDir, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        format_data(
            tmp_path / "data", tmp_path / "dump", limits=None, progress=interrupt
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_file_that_shrinks_while_it_is_read(files: DataDir) -> None:
    path = files.wav["ann-0"]
    with open_recording(path, RATE) as recording:
        os.truncate(path, 200)
        with pytest.raises(InputError, match="truncated"):
            recording.read(0, recording.length)
