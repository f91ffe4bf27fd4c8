"""The pictures of the documentation are well-formed, and what their command draws."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    subprocess.run([sys.executable, PICTURES / "draw.py", folder], check=True)
    return folder


def test_the_pictures_are_up_to_date(drawn: Path) -> None:
    names = {path.name for path in drawn.iterdir()}
    assert names == {path.name for path in PICTURES.glob("*.svg")}
    for name in names:
        assert (PICTURES / name).read_text() == (drawn / name).read_text(), name


def test_each_picture_has_a_title_and_stays_in_its_frame(drawn: Path) -> None:
    for path in drawn.iterdir():
        root = ElementTree.parse(path).getroot()
        assert root[0].text, path.name
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for shape in root.iter():
            x = float(shape.get("x", 0)) + float(shape.get("width", 0))
            y = float(shape.get("y", 0)) + float(shape.get("height", 0))
            assert 0 <= x <= width, f"{path.name}: {shape.attrib}"
            assert 0 <= y <= height, f"{path.name}: {shape.attrib}"
