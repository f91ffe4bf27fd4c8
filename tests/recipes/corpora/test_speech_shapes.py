"""The shapes that are counted without audio are those that ESPnet collects."""

from pathlib import Path

import pytest

from espnet_distopt.bin import asr_train
from espnet_distopt.recipes.commands.formatting import speech_shapes_command
from tests.espnet.toy import RNN, arguments, conformer, write_toy_data
from tests.refusal import Refused


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


# CTC needs 10, 11, 10 and 1 frames: one for each label, and between two equal ones.
TEXTS = {"a": "low mid " * 5, "b": "low " * 6, "c": "low mid " * 5, "d": "low"}


def too_short(root: Path, samples: dict[str, int], name: str = "train") -> None:
    (root / name / "text").write_text(
        "".join(f"{key} {TEXTS[key].strip()}\n" for key in samples)
    )
    counts = "".join(f"{key} {count}\n" for key, count in samples.items())
    (root / name / "utt2num_samples").write_text(counts)


def kept(root: Path, part: str = "train") -> list[str]:
    """Return the utterances that have shapes, all in both files."""
    tables = [
        [line.split()[0] for line in (root / "shapes" / part / name).open()]
        for name in ("speech_shape", "text_shape")
    ]
    assert tables[0] == tables[1]
    return tables[0]


# An RNN has a frame for each hop of 160 samples and one more, a conformer for four.
@pytest.mark.parametrize(
    ("model", "least"),
    [(RNN, {10: 9 * 160, 11: 10 * 160}), (conformer(), {10: 42 * 160, 11: 46 * 160})],
    ids=["rnn", "conformer"],
)
def test_ctc_needs_a_frame_for_each_label(
    model: dict[str, str],
    least: dict[int, int],
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = arguments(data, data / "exp", model=model)
    tokens = ["--token_list", str(data / "tokens.txt")]
    fits = {"a": least[10], "b": least[11], "d": 99999}
    too_short(data, fits)
    too_short(data, {"a": least[10] - 1, "b": least[11] - 1, "d": 99999}, "valid")
    speech_shapes_command(command(data, "word", *tokens, "--model", *options))
    assert kept(data) == list(fits)
    assert kept(data, "valid") == ["d"]
    assert not (data / "shapes/train/left_out").exists()
    left_out = (data / "shapes/valid/left_out").read_text().splitlines()
    assert left_out == [
        f"a needs 10 frames, has {least[10] - 1} samples",
        f"b needs 11 frames, has {least[11] - 1} samples",
    ]
    said = capsys.readouterr().out
    assert "left out 2 too short for their text" in said
    assert "the first is a: needs 10 frames" in said


def test_what_no_encoder_reads_is_left_out(data: Path) -> None:
    too_short(data, {"a": 9999, "d": 1})
    (data / "train" / "text").write_text("a low\nd\n")
    options = arguments(data, data / "exp", model=conformer())
    speech_shapes_command(command(data, "word", "--model", *options))
    assert kept(data) == ["a"]


def test_words_that_the_model_lacks_are_one_label(data: Path) -> None:
    too_short(data, {"a": 9 * 160, "d": 9999})
    (data / "train" / "text").write_text("a " + "low mid x y high " * 2 + "\nd low\n")
    tokens = ["--token_list", str(data / "tokens.txt")]
    options = arguments(data, data / "exp")
    speech_shapes_command(command(data, "word", "--model", *options))
    assert kept(data) == ["a", "d"]
    speech_shapes_command(command(data, "word", *tokens, "--model", *options))
    assert kept(data) == ["d"]


def test_without_a_model_a_frame_is_ten_milliseconds(
    data: Path, refused: Refused
) -> None:
    too_short(data, {"a": 9 * 80, "b": 9 * 80, "d": 9999})
    speech_shapes_command(command(data, "word"))
    assert kept(data) == ["a", "b", "d"]  # at an unknown rate
    (data / "train" / "rate_and_speeds").write_text("8000 1\n")
    speech_shapes_command(command(data, "word"))
    assert kept(data) == ["a", "d"]
    too_short(data, {"a": 9, "b": 9})
    error = refused(speech_shapes_command, command(data, "word"))
    assert error.startswith(f"{data / 'train'}: CTC has too few frames for ")
    assert "such as a (needs 10 frames, has 9 samples)" in error


BAD = {
    "no counts": (None, "char", "utt2num_samples: no such file"),
    "other number": ("a 8\n", "char", "text:1: spk-train-000 is not in"),
    "other utterance": ("x 8\n" * 24, "char", "utt2num_samples:2: x comes twice"),
    "no subwords": ("", "bpe", "--bpemodel None: no such file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sets(data: Path, kind: str, refused: Refused) -> None:
    content, token_type, message = BAD[kind]
    path = data / "train" / "utt2num_samples"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert message in refused(speech_shapes_command, command(data, token_type))
    assert not list(data.glob("shapes/*/*"))


def test_it_cannot_be_written(data: Path, refused: Refused) -> None:
    (data / "shapes").write_text("")
    error = refused(speech_shapes_command, command(data, "char"))
    assert error == f"{data / 'shapes/train'}: cannot be written: Not a directory"
