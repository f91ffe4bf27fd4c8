"""A plot has the format that its file's name says."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from espnet_distopt.errors import InputError
from espnet_distopt.monitoring.pictures import write_picture


@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("a.png", b"\x89PNG"),
        ("a.PNG", b"\x89PNG"),
        ("a", b"\x89PNG"),
        ("a.pdf", b"%PDF"),
        ("a.svg", b"<?xml"),
    ],
)
def test_the_ending_says_the_format(name: str, magic: bytes, tmp_path: Path) -> None:
    write_picture(Figure(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"a\.bmp: a plot's file ends in one of \.png,"
    ):
        write_picture(Figure(), tmp_path / "a.bmp")
    assert not list(tmp_path.iterdir())
