"""Discs: files found whatever the directories, and the length of a call."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.ldc.discs import (
    call_seconds,
    find_file,
    find_files,
    name_recordings,
)


def tree(root: Path, *names: str) -> list[Path]:
    paths = [root / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_files_at_any_depth_in_any_case_sorted(tmp_path: Path) -> None:
    later, first, _ = tree(tmp_path, "d2/data/SW2.SPH", "d1/sw1.sph", "d1/xsw1.sph")
    assert find_files(tmp_path, r"sw\d\.sph") == [first, later]


def test_linked_discs_are_entered(tmp_path: Path) -> None:
    tree(tmp_path, "mounted/data/sw1.sph")
    (tmp_path / "discs").mkdir()
    (tmp_path / "discs" / "d1").symlink_to(tmp_path / "mounted")
    expected = [tmp_path / "discs" / "d1" / "data" / "sw1.sph"]
    assert find_files(tmp_path / "discs", r"sw1\.sph") == expected


def test_the_one_file(tmp_path: Path) -> None:
    (path,) = tree(tmp_path, "reference/hub5.stm")
    assert find_file(tmp_path, r".*\.stm", "reference") == path


def test_names_of_recordings(tmp_path: Path) -> None:
    first, second = tree(tmp_path, "d1/SW02001.SPH", "d2/sw02005.sph")
    assert name_recordings([first, second]) == {"sw02001": first, "sw02005": second}


BAD_TREES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (
        lambda root: find_files(root / "none", ".*"),
        "none: no such directory",
    ),
    "a file for a directory": (
        lambda root: find_files(root / "a.stm", ".*"),
        "a.stm: no such directory",
    ),
    "none": (
        lambda root: find_file(root, "x.*", "reference"),
        "no reference (a file named like x.*) below it",
    ),
    "two": (lambda root: find_file(root, r".*\.stm", "reference"), "a.stm and "),
    "two of one name": (
        lambda root: name_recordings(find_files(root, r"a\..*")),
        "a copy of it is at",
    ),
}


@pytest.mark.parametrize("kind", BAD_TREES)
def test_bad_tree(kind: str, tmp_path: Path) -> None:
    tree(tmp_path, "a.stm", "b.STM", "d/a.stm")
    act, message = BAD_TREES[kind]
    with pytest.raises(InputError) as error:
        act(tmp_path)
    assert str(tmp_path) in str(error.value) and message in str(error.value)


def write_call(path: Path, rate: int = 8000, channels: int = 2) -> None:
    write_sphere(path, np.zeros((12000, channels), np.int16), rate)


def test_length_of_a_call(tmp_path: Path) -> None:
    write_call(tmp_path / "call.sph")
    assert call_seconds(tmp_path / "call.sph") == 1.5


BAD_CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.touch, ""),
    "not SPHERE": (lambda path: path.write_bytes(b"RIFF" * 500), ""),
    "mono": (lambda path: write_call(path, channels=1), "got 1 of 8000 Hz"),
    "16 kHz": (lambda path: write_call(path, rate=16000), "got 2 of 16000 Hz"),
}


@pytest.mark.parametrize("kind", BAD_CALLS)
def test_bad_call(kind: str, tmp_path: Path) -> None:
    make, message = BAD_CALLS[kind]
    path = tmp_path / "call.sph"
    make(path)
    with pytest.raises(InputError) as error:
        call_seconds(path)
    assert str(error.value).startswith(str(path)) and message in str(error.value)
    assert "\n" not in str(error.value)
