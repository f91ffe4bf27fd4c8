"""The shapes that are counted without audio are those that ESPnet collects."""

from pathlib import Path

import pytest

from espnet_distopt.bin import asr_train
from espnet_distopt.recipes.commands.formatting import speech_shapes_command
from tests.espnet.toy import arguments, write_toy_data
from tests.refusal import error_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_toy_data(tmp_path)
    for name in ("train", "valid"):
        (tmp_path / name / "shape").rename(tmp_path / name / "utt2num_samples")
    return tmp_path


def command(data: Path, token_type: str, *more: str) -> list[str]:
    sets = ["--train", str(data / "train"), "--valid", str(data / "valid")]
    return [*sets, "--token_type", token_type, "--out", str(data / "shapes"), *more]


@pytest.mark.parametrize("nj", [1, 3])
def test_they_are_espnets(data: Path, nj: int) -> None:
    options = arguments(data, data / "stats", "--collect_stats", "true")
    options = [word.replace("/shape", "/wav.scp") for word in options]
    asr_train.main(options)
    speech_shapes_command(command(data, "word", "--nj", str(nj)))
    for part in ("train", "valid"):
        for name in ("speech_shape", "text_shape"):
            expected = (data / "stats" / part / name).read_text()
            assert (data / "shapes" / part / name).read_text() == expected
        assert len(list((data / "shapes" / part).iterdir())) == 2


def test_characters(data: Path) -> None:
    (data / "train" / "text").write_text("a hi you\nb\n")
    (data / "train" / "utt2num_samples").write_text("a 8\nb 9\n")
    speech_shapes_command(command(data, "char"))
    assert (data / "shapes/train/speech_shape").read_text() == "a 8\nb 9\n"
    assert (data / "shapes/train/text_shape").read_text() == "a 6\nb 0\n"


BAD = {
    "no counts": (None, "char", "utt2num_samples: no such file"),
    "other number": ("a 8\n", "char", "text:1: spk-train-000 is not in"),
    "other utterance": (
        "x 8\n" * 24,
        "char",
        "utt2num_samples:2: x comes twice",
    ),
    "no subwords": ("", "bpe", "--bpemodel None: no such file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sets(data: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, token_type, message = BAD[kind]
    path = data / "train" / "utt2num_samples"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert message in error_of(speech_shapes_command, command(data, token_type), capsys)
    assert not list(data.glob("shapes/*/*"))


def test_it_cannot_be_written(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "shapes").write_text("")
    error = error_of(speech_shapes_command, command(data, "char"), capsys)
    assert error == f"{data / 'shapes/train'}: cannot be written: Not a directory"
