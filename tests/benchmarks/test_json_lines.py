"""A line that a killed run has not ended is neither read nor joined by the next one."""

from pathlib import Path

import json_lines


def test_a_file_that_is_missing_has_no_lines_and_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.jsonl"
    assert json_lines.read(path) == []
    json_lines.append(path, {"a": "é"})
    json_lines.append(path, {"b": [1]})
    assert path.read_text() == '{"a": "\\u00e9"}\n{"b": [1]}\n'
    assert json_lines.read(path) == path.read_text().splitlines()


def test_a_line_without_an_end_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for content, kept in (('{"a": 1}\n{"b', ['{"a": 1}']), ('{"a', [])):
        path.write_text(content)
        assert json_lines.read(path) == kept
        json_lines.append(path, {"c": 2})
        assert json_lines.read(path) == [*kept, '{"c": 2}']
