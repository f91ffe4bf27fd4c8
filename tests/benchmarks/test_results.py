"""Each result says how it was made: commit, machine, seeds and command."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = {str(p.relative_to(RESULTS)): p for p in sorted(RESULTS.rglob("*.json"))}


def script(command: str) -> Path:
    words = shlex.split(command)
    return ROOT / next(word for word in words if word.startswith("benchmarks/"))


def commits_of(path: Path) -> set[str]:
    """Return the commits that a result is of: that of its report, and of its cells.

    A benchmark that finds cells in its file reports them again, although the code may
    have changed since they were computed.
    """
    found = json.loads(path.read_text())
    cells = path.parent / script(found["command"]).with_suffix(".jsonl").name
    lines = cells.read_text().splitlines() if cells.exists() else []
    of_cells = [json.loads(line).get("machine", {}).get("commit") for line in lines]
    return {found["machine"]["commit"], *filter(None, of_cells)}


@pytest.mark.parametrize("name", FILES)
def test_a_result_says_how_it_was_made(name: str) -> None:
    found: Any = json.loads(FILES[name].read_text())
    assert found.keys() >= {"machine", "command", "seeds", "repeats", "results"}
    commits = commits_of(FILES[name])
    assert not [c for c in commits if c == "unknown" or c.endswith("-dirty")]
    assert script(found["command"]).exists()


def test_the_tables_of_the_page_are_rows_of_the_reports() -> None:
    """A figure is copied from a report, and not written by hand."""
    page = (ROOT / "docs" / "performance.md").read_text()
    tables = re.findall(r"<!-- rows of (\w+) -->\n((?:\|.*\n)+)", page)
    assert len(tables) >= 7
    for name, table in tables:
        report = (RESULTS / f"{name}.md").read_text().splitlines()
        for line in table.splitlines():
            assert line in report, f"docs/performance.md, {name}: {line}"
