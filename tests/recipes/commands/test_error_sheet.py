"""The page of the worst lines: which are on it, their images, and what is marked."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.commands.scoring import error_sheet_command as main
from tests.recipes.scoring.line_sets import HYP, dump
from tests.refusal import Refused


def command(root: Path, data: str = ".") -> list[str]:
    write_table(root / "hyp", HYP)
    out = root / "out" / "errors.html"
    inputs = f"--data {root / data} --ref {root}/text --hyp {root}/hyp"
    return [*inputs.split(), "--out", str(out)]


def sheet(root: Path, *options: str, data: str = ".") -> Path:
    main([*command(root, data), *options])
    return root / "out" / "errors.html"


def images(page: Path) -> list[np.ndarray]:
    found = re.findall(r'base64,([^"]*)"', page.read_text())
    pngs = [io.BytesIO(base64.b64decode(each)) for each in found]
    return [np.asarray(Image.open(png)) for png in pngs]


def test_the_worst_lines_come_first_and_what_differs_is_marked(tmp_path: Path) -> None:
    page = sheet(dump(tmp_path / "d")).read_text()
    assert re.findall("<h2>(.*)</h2>", page) == [
        "ann-known-2: 5 of 5",
        "ann-known-1: 2 of 19",
        "bob-digits-1: 1 of 4",
    ]
    assert re.findall('<p dir="auto">(.*)</p>', page) == [
        *("<b>jumps</b>", ""),
        *("the qui<b>c</b>k brown fox", "the quik brown fox<b>!</b>"),
        *("0<b>0</b>42", "0<b>8</b>42"),
    ]
    fewer = sheet(tmp_path / "d", "--most", "1").read_text()
    assert fewer.count("<h2>") == 1


def test_images_are_those_of_the_lines_from_files_or_features(tmp_path: Path) -> None:
    root = dump(tmp_path / "d")
    raw, ark = images(sheet(root)), images(sheet(root, data="ark"))
    first = np.asarray(Image.open(root / "ann-known-2.png"))
    assert np.array_equal(raw[0], first)
    for one, other in zip(raw, ark, strict=True):
        assert abs(one.astype(int) - other).max() <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "images.scp").unlink(), "neither images.scp nor feats"),
        (lambda root: (root / "ann-known-1.png").write_bytes(b"x"), "no image, or"),
        (lambda root: write_table(root / "images.scp", {"x": "y"}), "is not in it"),
    ],
)
def test_images_that_are_gone(
    tmp_path: Path, refused: Refused, change: object, message: str
) -> None:
    root = dump(tmp_path / "d")
    assert callable(change)
    change(root)
    assert message in refused(main, command(root))
    assert not (root / "out").exists()
