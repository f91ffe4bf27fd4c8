"""The shortest names that tell directories apart."""

from pathlib import Path

import pytest

from espnet_distopt.files.names import distinguishing_names


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["/exp/a", "/exp/b/"], ["a", "b"]),
        (["/x/exp/a", "/y/exp/a", "/x/exp/b"], ["x/exp/a", "y/exp/a", "b"]),
        (["/exp/a", "/exp/../exp/a"], ["a", "a"]),
        (["/a", "/exp/a"], ["/a", "exp/a"]),
        (["/"], ["/"]),
        ([], []),
    ],
)
def test_names(given: list[str], names: list[str]) -> None:
    assert distinguishing_names([Path(path) for path in given]) == names


def test_a_relative_directory_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asr").mkdir()
    monkeypatch.chdir(tmp_path / "asr")
    assert distinguishing_names([Path(".")]) == ["asr"]
