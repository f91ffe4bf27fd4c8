"""The sheet of the worst lines: what is chosen, how it is aligned, and the picture."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espnet_distopt.bin.error_sheet import main
from espnet_distopt.corpora.kaldi.tables import write_table
from espnet_distopt.scoring.error_sheet import align, worst_lines
from espnet_distopt.scoring.error_sheet_picture import WIDTH, fit
from tests.scoring.line_sets import HYP, REF, dump

TEXT = """\
3 of 4 lines have errors; the 3 with the most wrong characters

1. ann-known-2: 5 errors in 5 characters
ref  jumps
hyp  *****
     DDDDD

2. ann-known-1: 2 errors in 19 characters
ref  the quick brown fox*
hyp  the qui*k brown fox!
            D           I

3. bob-digits-1: 1 error in 4 characters
ref  0042
hyp  0842
      S
"""


def sheet(
    root: Path, hyp: dict[str, str] = HYP, *options: str, data: str = "."
) -> Path:
    write_table(root / "hyp", hyp)
    out = root / "out" / "errors.png"
    arguments = f"--data {root / data} --ref {root}/text --hyp {root}/hyp --out {out}"
    main([*arguments.split(), *options])
    return out


def test_text(tmp_path: Path) -> None:
    out = sheet(dump(tmp_path / "d"))
    assert out.with_suffix(".txt").read_text() == TEXT
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "errors.png",
        "errors.txt",
    ]


def test_the_picture_is_the_same_each_time(tmp_path: Path) -> None:
    out = sheet(dump(tmp_path / "d"))
    first = out.read_bytes()
    assert sheet(tmp_path / "d").read_bytes() == first
    with Image.open(out) as picture:
        assert picture.mode == "RGB" and picture.width == WIDTH
        assert picture.height < 300 * 4
        pixels = np.asarray(picture)
    wrong = (pixels == (0xFF, 0xD9, 0xD0)).all(axis=2)
    assert wrong.any()
    right = sheet(tmp_path / "d", REF)
    with Image.open(right) as picture:
        assert not (np.asarray(picture) == (0xFF, 0xD9, 0xD0)).all(axis=2).any()
    assert right.with_suffix(".txt").read_text() == "0 of 4 lines have errors\n"


def test_features_show_the_same_image(tmp_path: Path) -> None:
    root = dump(tmp_path / "d")
    raw, ark = (Image.open(sheet(root, data=data)) for data in (".", "ark"))
    difference = np.asarray(raw).astype(int) - np.asarray(ark)
    assert abs(difference).max() <= 4  # one step of the ark, enlarged


def test_most_and_order() -> None:
    ref = {f"u{n}": ["a" * n] for n in range(1, 9)} | {"t1": ["b"]}
    hyp: dict[str, list[str]] = {line: [] for line in ref}
    chosen = worst_lines(ref, hyp, 3)
    assert [line.id for line in chosen.worst] == ["u8", "u7", "u6"]
    assert (chosen.wrong, chosen.total) == (9, 9)
    assert [line.id for line in worst_lines(ref, hyp, 9).worst][-2:] == ["t1", "u1"]


@pytest.mark.parametrize(
    ("ref", "hyp", "marks"),
    [
        ("abc", "abc", "   "),
        ("abc", "axc", " S "),
        ("abc", "ac", " D "),
        ("ac", "abc", " I "),
        ("ab", "", "DD"),
        ("a b", "ab", " D "),
        ("\u0648b", "\u0648c", " S"),
    ],
)
def test_alignment(ref: str, hyp: str, marks: str) -> None:
    [columns] = align([(ref, hyp)])
    assert "".join(column.mark for column in columns) == marks
    assert "".join(column.ref for column in columns) == ref
    assert "".join(column.hyp for column in columns) == hyp


@pytest.mark.parametrize(
    "shape", [(1, 1), (32, 4), (1, 16_000), (32, 16_000), (3000, 4), (500, 2000)]
)
def test_any_image_fits(shape: tuple[int, int]) -> None:
    scaled = fit(np.zeros(shape, np.uint8))
    assert 1 <= scaled.width < WIDTH and 1 <= scaled.height <= 64


def test_long_text_is_cut(tmp_path: Path) -> None:
    long = {"u": "ab " * 1000}
    out = sheet(dump(tmp_path / "d", long, width=5000), {"u": "c" * 2000})
    with Image.open(out) as picture:
        assert picture.size[0] == WIDTH and picture.height < 400


BAD = {
    "no images": ({}, ("--data", "{}/none"), "none: neither images.scp nor feats.scp"),
    "most": ({}, ("--most", "0"), "--most 0: expected a number from 1 to 100"),
    "too many": ({}, ("--most", "101"), "--most 101: expected a number from 1 to 100"),
    "no png": ({}, ("--out", "{}/errors.jpg"), "errors.jpg: expected the name of a"),
    "missing": ({"ann-known-1": "x"}, (), "3 of 4 utterances of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    hyp, options, message = BAD[name]
    out = sheet(dump(tmp_path / "d"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        sheet(tmp_path / "d", hyp or HYP, *(o.format(tmp_path) for o in options))
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ") and message in error
    assert error.count("\n") == 1
    assert out.exists() == (name == "no png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "ann-known-1.png").write_bytes(b"x"), "no image, or"),
        (lambda root: (root / "ann-known-1.png").unlink(), "no such file"),
        (lambda root: write_table(root / "images.scp", {"x": "y"}), "is not in it"),
    ],
)
def test_image_that_is_gone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: object,
    message: str,
) -> None:
    root = dump(tmp_path / "d")
    assert callable(change)
    change(root)
    with pytest.raises(SystemExit):
        sheet(root)
    assert message in capsys.readouterr().err
    assert not (root / "out").exists()
