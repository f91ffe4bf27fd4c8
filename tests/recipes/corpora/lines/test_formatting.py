"""Formatting of lines: features or paths, skips that are listed, and bad input."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table, write_table
from espnet_distopt.recipes.commands.formatting import format_lines_command as main
from espnet_distopt.recipes.corpora.kaldi.arks import MatrixArkWriter, read_matrix
from espnet_distopt.recipes.corpora.lines.formatting import (
    RAW,
    check_scaling,
    format_lines,
)
from espnet_distopt.recipes.corpora.lines.images import line_features
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from tests.recipes.contents import contents
from tests.recipes.corpora.lines.line_files import bars, data_dir, save
from tests.refusal import Refused

TEXTS = {f"ann-{number}": f"no. {number}" for number in range(5)}


@pytest.mark.parametrize("nj", [1, 3])
def test_features_in_arks(nj: int, tmp_path: Path) -> None:
    source = data_dir(tmp_path, TEXTS)
    save(tmp_path / "png" / "ann-3.png", bars(90, 40))
    done = []
    target = tmp_path / "dump"
    told = format_lines(
        source, target, height=16, nj=nj, progress=lambda n, total: done.append(n)
    )
    assert done == [1, 2, 3, 4, 5]
    places = read_table(target / "feats.scp", str)
    assert list(places) == list(TEXTS)
    assert {place.partition(":")[0] for place in places.values()} == (
        {str(path) for path in target.glob("feats*.ark")}
    )
    frames = read_table(target / "utt2num_frames", int)
    for key, place in places.items():
        ink = read_matrix(place)
        image = bars(90, 40) if key == "ann-3" else bars()
        assert np.abs(ink - line_features(image, 16)).max() <= 0.5 / 255 + 1e-6
        assert ink.shape == (frames[key], 16)
    assert told.columns == frames
    assert sorted(path.name for path in target.glob("[stu]*")) == [
        "skipped.txt",
        "spk2utt",
        "text",
        "utt2num_frames",
        "utt2spk",
    ]
    for name in ("text", "utt2spk", "spk2utt"):
        assert (target / name).read_text() == (source / name).read_text()


def test_features_of_another_scaling_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "dump"
    format_lines(data_dir(tmp_path, TEXTS), target, height=32, least_rows=64)
    check_scaling(target, 32, 64)
    with pytest.raises(InputError, match=r"rows 32 64, .* with 32 0: format"):
        check_scaling(target, 32, 0)
    (target / "line_scaling").unlink()  # as in a directory of another program
    check_scaling(target, 32, 0)


def test_more_processes_than_lines(tmp_path: Path) -> None:
    source = data_dir(tmp_path, {"ann-0": "no. 0"})
    assert format_lines(source, tmp_path / "dump", nj=9).columns == {"ann-0": 96}


def test_raw_lists_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = data_dir(Path("."), TEXTS)
    assert read_table(source / "images.scp", str)["ann-0"] == "png/ann-0.png"
    format_lines(source, Path("dump"), feats=RAW)
    dumped = LineDir.read(Path("dump"))
    assert dumped.images["ann-0"] == str(tmp_path / "png" / "ann-0.png")
    assert read_table(Path("dump/utt2num_frames"), int)["ann-0"] == 96


def test_ark_and_raw_take_each_others_place(tmp_path: Path) -> None:
    source = data_dir(tmp_path, TEXTS)
    for feats in ("ark", "raw", "ark"):
        main([str(source), str(tmp_path / "dump"), "--feats", feats])
        assert (tmp_path / "dump" / "feats.scp").exists() == (feats == "ark")
        assert (tmp_path / "dump" / "images.scp").exists() == (feats == "raw")


UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "narrow": (lambda path: save(path, bars(1, 20)), "too narrow: 2 columns"),
    "wide": (
        lambda path: save(path, np.full((10, 50_000), 255, np.uint8)),
        "too wide: 160000 columns",
    ),
    "crowded": (
        lambda path: save(path, bars(12, 20)),
        "too narrow for its text: 19 columns, expected at least 20",
    ),
    "blank": (lambda path: save(path, np.full((20, 60), 255, np.uint8)), "without ink"),
}
UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (lambda path: path.unlink(), "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "empty, expected an image"),
    "text": (lambda path: path.write_bytes(b"hello"), "no image, or of none"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:40]), "ann-2.png: "),
}


@pytest.mark.parametrize("feats", ["ark", "raw"])
@pytest.mark.parametrize("name", [*UNFIT, *UNREADABLE])
def test_training_skips_and_lists(
    name: str, feats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = data_dir(tmp_path, TEXTS), tmp_path / "dump"
    break_it, reason = {**UNFIT, **UNREADABLE}[name]
    break_it(tmp_path / "png" / "ann-2.png")
    main([str(source), str(target), "--feats", feats])
    skipped = read_table(target / "skipped.txt", str)
    assert list(skipped) == ["ann-2"] and reason in skipped["ann-2"]
    assert "skipped 1: " in capsys.readouterr().out
    for file in ("text", "utt2spk", "utt2num_frames"):
        assert set(read_table(target / file, str)) == {*TEXTS} - {"ann-2"}


def test_training_skips_lines_without_text(tmp_path: Path) -> None:
    source = data_dir(tmp_path, {**TEXTS, "ann-2": ""})
    told = format_lines(source, tmp_path / "dump")
    assert len(told.columns) == 4 and told.unfit == {"ann-2": "without text"}


@pytest.mark.parametrize("feats", ["ark", "raw"])
@pytest.mark.parametrize("name", UNFIT)
def test_tests_keep_unfit_lines(
    name: str, feats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = data_dir(tmp_path, TEXTS), tmp_path / "dump"
    UNFIT[name][0](tmp_path / "png" / "ann-2.png")
    main([str(source), str(target), "--feats", feats, "--keep_all"])
    assert set(read_table(target / "text", str)) == set(TEXTS)
    assert "kept, though 1: " in capsys.readouterr().out
    if feats == "ark" and name != "crowded":
        ink = read_matrix(read_table(target / "feats.scp", str)["ann-2"])
        assert ink.shape == (96 if name == "blank" else 4, 32) and not ink.any()


@pytest.mark.parametrize("name", UNREADABLE)
def test_tests_need_every_image(name: str, tmp_path: Path, refused: Refused) -> None:
    source, target = data_dir(tmp_path, TEXTS), tmp_path / "dump"
    break_it, reason = UNREADABLE[name]
    break_it(tmp_path / "png" / "ann-2.png")
    error = refused(main, [str(source), str(target), "--keep_all"])
    assert error.startswith(f"{source / 'images.scp'}:3: ann-2: ") and reason in error
    assert not target.exists()


def _set(name: str, line: int, text: str) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        lines = (source / name).read_text().split("\n")
        lines[line - 1] = text
        (source / name).write_text("\n".join(lines))

    return change


def _lose_all(source: Path) -> None:
    for path in (source.parent / "png").iterdir():
        path.unlink()


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (
        lambda source: source.rename(source.with_name("away")),
        "no such data directory",
    ),
    "id without path": (_set("images.scp", 2, "ann-1"), "images.scp:2: expected"),
    "pipe": (_set("images.scp", 2, "ann-1 convert a.png |"), "images.scp:2: expected"),
    "image without transcript": (
        _set("images.scp", 5, "ann-4 a.png\nann-5 b.png"),
        "images.scp:6: ann-5 is not in",
    ),
    "writer": (_set("utt2spk", 2, "ann-1 bob"), "utt2spk:2: utterance ann-1 must"),
    "spk2utt": (_set("spk2utt", 1, "ann ann-1"), "spk2utt:1: speaker ann"),
    "nothing left": (_lose_all, "no line is left; 5 skipped, the first: ann-0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_directories(name: str, tmp_path: Path, refused: Refused) -> None:
    source = data_dir(tmp_path, TEXTS)
    BAD[name][0](source)
    error = refused(main, [str(source), str(tmp_path / "dump")])
    assert error.startswith(str(tmp_path)) and BAD[name][1] in error
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nj", "0"], "--nj is 0, expected at least 1"),
        (["--height", "0"], "--height is 0, expected at least 1"),
    ],
)
def test_bad_options(
    options: list[str], message: str, tmp_path: Path, refused: Refused
) -> None:
    source = data_dir(tmp_path, TEXTS)
    command = [str(source), str(tmp_path / "dump"), *options]
    assert refused(main, command) == message


def test_onto_itself_or_somebody_elses(tmp_path: Path) -> None:
    source = data_dir(tmp_path, TEXTS)
    before = contents(source)
    with pytest.raises(InputError, match="another directory"):
        format_lines(source, source)
    with pytest.raises(InputError, match="not empty"):
        format_lines(source, tmp_path / "png")
    assert contents(source) == before


def test_arks_refuse_what_a_byte_cannot_hold(tmp_path: Path) -> None:
    with MatrixArkWriter(tmp_path / "x.ark") as ark:
        for bad in (np.ones(3), np.full((2, 2), 1.1), np.full((2, 2), np.nan)):
            with pytest.raises(ValueError, match=r"values in \[0, 1\]"):
                ark["a"] = bad.astype(np.float32)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("x.ark:99", "no whole matrix"),
        ("x.ark:3", "no whole matrix"),
        ("y.ark:2", "cannot be read: No such file"),
    ],
)
def test_bad_places_in_arks(place: str, message: str, tmp_path: Path) -> None:
    with MatrixArkWriter(tmp_path / "x.ark") as ark:
        ark["a"] = np.zeros((9, 4), np.float32)
    (tmp_path / "x.ark").write_bytes((tmp_path / "x.ark").read_bytes()[:30])
    with pytest.raises(InputError, match=message):
        read_matrix(f"{tmp_path}/{place}")
    with pytest.raises(InputError, match="no whole matrix"):
        read_matrix(ark.locations["a"])


def test_text_is_normalized(tmp_path: Path) -> None:
    source = data_dir(tmp_path, TEXTS)
    write_table(source / "text", {**TEXTS, "ann-1": "cafe\u0301  au\u00a0lait"})
    format_lines(source, tmp_path / "dump")
    assert read_table(tmp_path / "dump" / "text", str)["ann-1"] == "caf\u00e9 au lait"


def test_equal_characters_need_a_frame_between_them(tmp_path: Path) -> None:
    """CTC reads `aab` from the frames a, blank, a, b at the least."""
    source = data_dir(tmp_path, {"ann-0": "ab", "ann-1": "aab", "ann-2": "aba"})
    for key in ("ann-0", "ann-1", "ann-2"):
        save(tmp_path / "png" / f"{key}.png", bars(15, 32))
    format_lines(source, tmp_path / "dump", height=32)
    assert list(read_table(tmp_path / "dump" / "text", str)) == ["ann-0", "ann-2"]
