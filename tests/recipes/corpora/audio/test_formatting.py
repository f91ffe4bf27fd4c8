"""Formatting has the same samples and ids with any number of processes; bad input."""

from collections.abc import Callable
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
from espnet_distopt.recipes.corpora.audio.formatting import (
    Limits,
    change_speed,
    format_data,
    parse_factors,
    prefix,
)
from espnet_distopt.recipes.corpora.audio.recordings import AudioFile, open_audio
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter, read_wav
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir, FileChannel, Segment
from tests.recipes.contents import contents
from tests.recipes.corpora.audio.shorten_encoder import Encoder
from tests.recipes.corpora.audio.sphere_files import shortened
from tests.refusal import Refused, error_of

RATE = 8000


def noise(seconds: float, seed: int = 0, channels: int = 1) -> Samples:
    """Draw samples of shape (time,) or (time, channels)."""
    shape = (round(seconds * RATE), channels) if channels > 1 else round(seconds * RATE)
    return np.random.default_rng(seed).integers(-9000, 9000, shape).astype(np.int16)


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
    data = DataDir(
        wav=wav, text=dict.fromkeys(wav, "hi there"), utt2spk=dict.fromkeys(wav, "ann")
    )
    data.write(tmp_path / "data")
    return data


def test_whole_files(files: DataDir, tmp_path: Path) -> None:
    format_data(tmp_path / "data", tmp_path / "dump", limits=Limits())
    found = dumped(tmp_path / "dump")
    assert list(found) == list(files.wav)
    for number, utt in enumerate(files.wav):
        np.testing.assert_array_equal(found[utt], noise(1.5, number))


@pytest.mark.parametrize("nj", [2, 3, 9])
def test_processes_change_nothing_but_the_arks(
    nj: int, files: DataDir, tmp_path: Path
) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    source = tmp_path / "data"
    first = format_data(source, one, limits=Limits(), factors=(1.0, 0.9))
    told: list[tuple[int, int]] = []
    second = format_data(
        source,
        several,
        limits=Limits(),
        factors=(1.0, 0.9),
        nj=nj,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (first.samples, first.dropped) == (second.samples, second.dropped)
    assert told == [(2, 6), (4, 6), (6, 6)]
    left, right = contents(one), contents(several)
    assert left.pop("wav.ark") and left.pop("wav.scp") and right.pop("wav.scp")
    arks = [name for name in right if name.endswith(".ark")]
    assert sorted(arks) == [f"wav.{k}.ark" for k in range(1, min(nj, 3) + 1)]
    assert left == {name: right[name] for name in right if name not in arks}
    expected, found = dumped(one), dumped(several)
    assert list(expected) == list(found)
    for utt, samples in expected.items():
        np.testing.assert_array_equal(samples, found[utt])


@pytest.mark.parametrize("options", [[], ["--nj", "2", "--speed_factors", "0.9 1"]])
def test_again_gives_the_same_bytes(
    options: list[str], files: DataDir, tmp_path: Path
) -> None:
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), *options]
    main(command)
    before = contents(tmp_path / "dump")
    main(command)
    assert contents(tmp_path / "dump") == before


def test_speeds(files: DataDir, tmp_path: Path) -> None:
    factors = ["--speed_factors", "0.9 1.0 1.1"]
    main([str(tmp_path / "data"), str(tmp_path / "dump"), *factors])
    found = dumped(tmp_path / "dump")
    assert list(found) == [
        f"{copy}ann-{k}" for copy in ("", "sp0.9-", "sp1.1-") for k in range(3)
    ]
    for number in range(3):
        original = noise(1.5, number)
        np.testing.assert_array_equal(found[f"ann-{number}"], original)
        for factor in (0.9, 1.1):
            copy = found[f"sp{factor}-ann-{number}"]
            assert len(copy) == round(12000 / factor)
            np.testing.assert_array_equal(copy, change_speed(original, factor))
    data = DataDir.read(tmp_path / "dump")
    assert set(data.utt2spk.values()) == {"ann", "sp0.9-ann", "sp1.1-ann"}
    assert data.text["sp0.9-ann-1"] == "hi there"
    noted = (tmp_path / "dump" / "rate_and_speeds").read_text()
    assert noted == "8000 0.9 1 1.1\n"


def test_limits_hold_for_the_copies(
    files: DataDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--min_seconds=1.4", "--max_seconds=1.6", "--speed_factors"]
    main([str(tmp_path / "data"), str(tmp_path / "dump"), *options, "0.9 1.0 1.1"])
    assert list(dumped(tmp_path / "dump")) == ["ann-0", "ann-1", "ann-2"]
    printed = capsys.readouterr().out
    assert "dropped 3 shorter than 1.4 s" in printed
    assert "dropped 3 longer than 1.6 s" in printed


def rewritten(
    seconds: float, rate: int = RATE, channels: int = 1
) -> Callable[..., None]:
    def damage(root: Path) -> None:
        soundfile.write(root / "1.wav", noise(seconds, 0, channels), rate)

    return damage


def test_what_is_said_of_odd_utterances(
    files: DataDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(0)(tmp_path)  # ann-1
    soundfile.write(tmp_path / "2.wav", np.full(9000, 12, np.int16), RATE)
    clipped = np.clip(5 * noise(1.5).astype(int), -(2**15), 2**15 - 1)
    soundfile.write(tmp_path / "0.wav", clipped.astype(np.int16), RATE)
    full = int(np.isin(clipped, (-(2**15), 2**15 - 1)).sum())
    command = [str(tmp_path / "data"), str(tmp_path / "dump")]
    main(command)
    assert list(dumped(tmp_path / "dump")) == ["ann-0"]
    printed = capsys.readouterr().out
    assert "dropped 1 shorter than 0.1 s" in printed
    assert "dropped 1 silent (all its samples are equal)" in printed
    assert f"{full} samples of 1 utterances are at full scale" in printed
    assert f"{full} of them in ann-0" in printed
    main([*command, "--keep_all"])
    found = dumped(tmp_path / "dump")
    assert list(found) == list(files.wav)
    assert found["ann-1"].tolist() == [0]
    assert "kept 1 without samples, as silence" in capsys.readouterr().out


def cut_wav(root: Path) -> None:
    path = root / "1.wav"
    path.write_bytes(path.read_bytes()[:-100])


def segmented(*lines: str) -> Callable[[Path], None]:
    """Give the data segments: those lines, for ann-0, ann-1, ann-2."""

    def damage(root: Path) -> None:
        (root / "data" / "segments").write_text(
            "".join(f"ann-{k} {line}\n" for k, line in enumerate(lines))
        )
        (root / "data" / "wav.scp").write_text(f"call {root}/1.wav\n")

    return damage


def channelled(*lines: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / "data" / "reco2file_and_channel").write_text("\n".join(lines) + "\n")

    return damage


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "data" / name
        path.write_text(path.read_text().replace(old, new))

    return damage


def copied_before(root: Path) -> None:
    for name in ("wav.scp", "text", "utt2spk", "spk2utt"):
        replaced(name, "ann", "sp0.9-ann")(root)


def foreign(root: Path) -> None:
    (root / "dump" / "wav.scp").unlink()


OK = "call 0.0 0.5"
BAD_DATA: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing wav": (
        lambda root: (root / "1.wav").unlink(),
        "1.wav: no such audio file",
    ),
    "truncated wav": (cut_wav, "1.wav: the file ends within this wav"),
    "two channels": (rewritten(1, RATE, 2), "1.wav: has 2 channels: list it in"),
    "no channel B": (
        channelled("ann-0 0 A", "ann-1 1 B", "ann-2 2 A"),
        "1.wav: has no channel B, only 1",
    ),
    "segment past the end": (
        segmented(OK, "call 0.5 2.01", OK),
        "segments:2: utterance ann-1: ends at 2.01 s, but recording call is 1.5 s",
    ),
    "segment after the end": (
        segmented(OK, OK, "call 1.5 1.6"),
        "segments:3: utterance ann-2: ends at 1.6 s, but recording call is 1.5 s",
    ),
    "no text": (lambda root: (root / "data" / "text").unlink(), "text: no such file"),
    "copies of other speeds": (copied_before, "text:1: sp0.9-ann-0 is called like"),
    "a dump of something else": (foreign, "is not empty and has no wav.scp"),
}


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_data_is_one_line(
    kind: str, files: DataDir, tmp_path: Path, refused: Refused
) -> None:
    damage, message = BAD_DATA[kind]
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), "--keep_all"]
    main(command)
    damage(tmp_path)
    before = contents(tmp_path / "dump")
    beside = {path.name for path in tmp_path.iterdir()}
    command += ["--speed_factors", "0.9 1.0"]
    assert message in refused(main, command)
    # The earlier dump is as it was, and nothing lies beside it.
    assert contents(tmp_path / "dump") == before
    assert {path.name for path in tmp_path.iterdir()} == beside


def test_bad_data_of_one_of_several_processes(
    files: DataDir, tmp_path: Path, refused: Refused
) -> None:
    cut_wav(tmp_path)
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), "--nj", "3"]
    assert "1.wav: the file ends within" in refused(main, command)
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nj 0", "--nj is 0, expected at least 1"),
        ("--speed_factors fast", "expected speed factors from 0.5 to 2.0"),
        ("--min_seconds 3 --max_seconds 2", "expected 0 <= min_seconds"),
        ("--min_seconds nan", "expected 0 <= min_seconds <= max_seconds"),
        ("--max_seconds 1", "data: no utterance is left: 3 longer than 1.0 s"),
    ],
)
def test_bad_options(
    options: str, message: str, files: DataDir, tmp_path: Path, refused: Refused
) -> None:
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), *options.split()]
    assert message in refused(main, command)
    assert not (tmp_path / "dump").exists()


def test_onto_itself(files: DataDir, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another directory"):
        format_data(tmp_path / "data", tmp_path / "data", limits=None)
    assert DataDir.read(tmp_path / "data") == files


@pytest.mark.parametrize("nj", [1, 2])
def test_interrupted(nj: int, files: DataDir, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    before = sorted(path.name for path in tmp_path.iterdir())
    source, target = tmp_path / "data", tmp_path / "dump"
    with pytest.raises(KeyboardInterrupt):
        format_data(source, target, limits=None, nj=nj, progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# Cutting: the right samples of each utterance, files opened once, and limits.


def one_speaker(wav: dict[str, str], text: dict[str, str] | None = None) -> DataDir:
    words = text or dict.fromkeys(wav, "hi there")
    return DataDir(wav=wav, text=words, utt2spk=dict.fromkeys(words, "ann"))


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


@pytest.mark.parametrize("nj", [1, 2])
def test_a_shortened_file_is_decoded_once(
    nj: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = noise(3, channels=2)
    shortened(conversation(tmp_path), len(samples), Encoder().encode(samples.T))
    decoded = []
    decode = shorten.decode_shorten

    def decode_and_count(stream: bytes, where: str, **form: Any) -> Any:
        decoded.append(where)
        return decode(stream, where, **form)

    monkeypatch.setattr(shorten, "decode_shorten", decode_and_count)
    format_data(tmp_path / "data", tmp_path / "dump", limits=None, nj=nj)
    assert decoded == [str(tmp_path / "c1.sph")]  # one file: one process, for any nj
    found = dumped(tmp_path / "dump")
    np.testing.assert_array_equal(found["c1-A-1"], samples[16000:20000, 0])
    np.testing.assert_array_equal(found["c1-B-1"], samples[8000:, 1])


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
    wav, segments = {}, {}
    for name in (f"r{number:02}" for number in range(100)):
        path = tmp_path / f"{name}.flac"
        soundfile.write(path, noise(2), RATE)
        if name in damaged:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        wav[name] = str(path)
        segments[f"{name}-1"] = Segment(name, 0.0, 0.5)
        segments[f"{name}-2"] = Segment(name, 1.5, 2.0)
    data = one_speaker(wav, dict.fromkeys(segments, "hi"))
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
    nj: str, tmp_path: Path, refused: Refused
) -> None:
    hundred(tmp_path, "r10", "r60")
    command = [str(tmp_path / "data"), str(tmp_path / "dump"), "--nj", nj]
    error = refused(main, command)
    assert error.startswith(f"{tmp_path}/r60.flac: ")
    assert "(like 1 before it, which may be left out, but no more: " in error
    assert not (tmp_path / "dump").exists()


# Speed perturbation: length, pitch and loudness of the copies; factors read.

FACTORS = (0.5, 0.9, 0.95, 1.0, 1.1, 2.0)


def sine(hertz: float, time: int = 8000, level: float = 16000) -> Samples:
    phase = 2 * np.pi * hertz * np.arange(time) / 8000
    return np.rint(level * np.sin(phase)).astype(np.int16)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("time", [1, 2, 99, 800, 8001])
def test_duration_is_divided_by_the_factor(factor: float, time: int) -> None:
    changed = change_speed(sine(440, time), factor)
    assert changed.shape == (round(time / factor),)
    assert changed.dtype == np.int16


@pytest.mark.parametrize("factor", FACTORS)
def test_pitch_is_multiplied_by_the_factor(factor: float) -> None:
    inner = slice(500, -500)  # filters need some samples at the ends
    changed = change_speed(sine(1000), factor)
    expected = sine(1000 * factor, len(changed))
    assert np.abs(changed[inner].astype(int) - expected[inner]).max() <= 16


def test_what_would_be_too_high_is_gone() -> None:
    changed = change_speed(sine(3900), 1.1)  # 4290 Hz: beyond half the rate
    assert np.abs(changed[500:-500]).max() < 50


def test_overshoot_is_clipped() -> None:
    square = np.where(np.arange(8000) % 80 < 40, 32767, -32768).astype(np.int16)
    changed = change_speed(square, 0.9)
    assert changed.max() == 32767 and changed.min() == -32768
    # where the sign is far from a change, it is the original's
    middles = np.arange(20, 7900, 40)
    at = np.rint(middles / 0.9).astype(int)
    np.testing.assert_array_equal(changed[at] > 0, square[middles] > 0)


def test_factors_and_names() -> None:
    assert parse_factors(" 0.9 1  1.10 ") == (0.9, 1.0, 1.1)
    assert [prefix(each) for each in (0.9, 1.0, 1.1, 2.0)] == [
        "sp0.9-",
        "",
        "sp1.1-",
        "sp2-",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected speed factors from 0.5 to 2.0"),
        ("0.9,1.1", "expected speed factors"),
        ("0", "expected speed factors"),
        ("90 100 110", "expected speed factors"),
        ("nan", "expected speed factors"),
        ("1 1.0", "comes twice"),
        ("0.9 0.9000000001", "comes twice"),  # their names would be the same
    ],
)
def test_bad_factors(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_factors(text)
