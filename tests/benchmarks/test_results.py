"""Results say how they were made, and with which code. Exceptions are named here.

`pytest tests/benchmarks/test_results.py -rx` lists the results of older code.
"""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.measured_code import changed_since, measured, own_code

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = {str(p.relative_to(RESULTS)): p for p in sorted(RESULTS.rglob("*.json"))}

STALE = {
    "chaos.json",
    "gpu.json",
    "killed_training.json",
    "text_lines.json",
}
"""Results whose benchmark has changed since; they are to be measured again."""


def read(name: str) -> Any:
    return json.loads(FILES[name].read_text())


def is_traceable(found: Any) -> bool:
    known = {"machine", "command", "seeds", "repeats", "results"}
    if not isinstance(found, dict) or not known <= found.keys():
        return False
    commit = str(found["machine"].get("commit", "unknown"))
    return commit != "unknown" and not commit.endswith("-dirty")


def script(command: str) -> str:
    words = shlex.split(command)
    return next(word for word in words if word.startswith("benchmarks/"))


def commits_of(path: Path) -> list[str]:
    """Return the commits that a result is of: that of its report, and of its cells.

    A benchmark that finds cells in its file reports them again, although the code may
    have changed since they were computed.
    """
    found = json.loads(path.read_text())
    commits = {found["machine"]["commit"]}
    cells = path.parent / Path(script(found["command"])).with_suffix(".jsonl").name
    lines = cells.read_text().splitlines() if cells.exists() else []
    for each in map(json.loads, lines):
        commits.update(filter(None, [each.get("machine", {}).get("commit")]))
    return sorted(commits)


def test_a_result_is_of_the_commits_of_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "a_variant.json"
    report = {"machine": {"commit": "3"}, "command": "X=1 python benchmarks/a.py -q"}
    path.write_text(json.dumps(report))
    assert commits_of(path) == ["3"]
    cells: list[dict[str, Any]] = [{"machine": {"commit": c}} for c in ("1", "3", "2")]
    lines = map(json.dumps, [*cells, {"an older line": "has none"}])
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert commits_of(path) == ["1", "2", "3"]


@pytest.mark.parametrize("name", FILES)
def test_a_result_names_machine_commit_seeds_and_command(name: str) -> None:
    assert is_traceable(read(name))
    assert not [c for c in commits_of(FILES[name]) if c.endswith("-dirty")]


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_of_the_benchmark_as_it_is(name: str) -> None:
    commits, path = made_by(name)
    changed = [each for c in commits for each in changed_since(c, own_code(path))]
    assert bool(changed) == (name in STALE)


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_of_the_code_as_it_is(name: str) -> None:
    commits, path = made_by(name)
    code = measured(path)
    if changed := {each for c in commits for each in changed_since(c, code)}:
        # A change need not change a figure, so who makes it need not measure again.
        of = ", ".join(commits)
        pytest.xfail(f"{len(changed)} of {len(code)} modules differ from {of}")


def made_by(name: str) -> tuple[list[str], str]:
    """Return the commits that a result is of, and the path of its benchmark."""
    commits = commits_of(FILES[name])
    for commit in commits:
        known = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
        if subprocess.run(known, capture_output=True, check=False).returncode:
            pytest.skip(f"commit {commit} is not in this copy of the repository")
    return commits, script(read(name)["command"])


def test_the_list_names_results() -> None:
    assert FILES.keys() >= STALE
