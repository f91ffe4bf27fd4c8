"""Small YAML files whose mistakes are told with their line."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.lines import read_lines

WRONG = {
    "a date that is none": ("a: 1\nb: {c: 2001-13-45}\n", "2: c: month must be in "),
    "an unknown tag": ("a: 1\nb: !us 3\n", "2: b: could not determine a constructor"),
    "a key twice": ("a: 1\na: 2\n", "2: a: is on line 1 already"),
    "no YAML": ("a: [1\n", "2: expected ',' or ']'"),
    "no mapping": ("- 1\n", "1: expected `key: value` lines"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}:{words}")
    assert "\n" not in str(caught.value)
