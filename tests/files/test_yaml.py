"""Configuration files."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.yaml import read_lines, read_yaml


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", {}),
        (b"# nothing\n", {}),
        (b"a: 1\nb: {c: x}\n", {"a": 1, "b": {"c": "x"}}),
        ("name: Zürich\n".encode(), {"name": "Zürich"}),
    ],
)
def test_mappings(tmp_path: Path, content: bytes, expected: dict[str, object]) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(content)
    assert read_yaml(path) == expected


WRONG = [
    (b"- a\n- b\n", "expected `key: value` lines"),
    (b"just words\n", "expected `key: value` lines"),
    # What is false is no mapping, either.
    (b"[]\n", "expected `key: value` lines"),
    (b"false\n", "expected `key: value` lines"),
    (b"0\n", "expected `key: value` lines"),
    (b"a: 1\nb: [1,\n", "line 3"),
    (b"a:\t1\n\t- b", "line 1"),
    (b"a: \xff\n", "utf-8"),
    (b"a: !!python/object:os.system {}\n", "could not determine a constructor"),
    (b"a: 2001-13-45\n", "month must be in 1..12"),
]


@pytest.mark.parametrize(("content", "words"), WRONG)
def test_bad_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and words in message
    assert "\n" not in message


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: No such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_yaml(tmp_path)


MISTAKES = {
    "a date that is none": ("a: 1\nb: {c: 2001-13-45}\n", "2: c: month must be in "),
    "an unknown tag": ("a: 1\nb: !us 3\n", "2: b: could not determine a constructor"),
    "a key twice": ("a: 1\na: 2\n", "2: a: is on line 1 already"),
    "no YAML": ("a: [1\n", "2: expected ',' or ']'"),
    "no mapping": ("- 1\n", "1: expected `key: value` lines"),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}:{words}")
    assert "\n" not in str(caught.value)
