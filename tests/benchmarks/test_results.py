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


@pytest.mark.parametrize("name", FILES)
def test_a_result_names_machine_commit_seeds_and_command(name: str) -> None:
    assert is_traceable(read(name))


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_of_the_benchmark_as_it_is(name: str) -> None:
    commit, path = made_by(name)
    assert bool(changed_since(commit, own_code(path))) == (name in STALE)


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_of_the_code_as_it_is(name: str) -> None:
    commit, path = made_by(name)
    code = measured(path)
    if changed := changed_since(commit, code):
        # A change need not change a figure, so who makes it need not measure again.
        pytest.xfail(f"{len(changed)} of {len(code)} modules differ from {commit}")


def made_by(name: str) -> tuple[str, str]:
    """Return the commit that a result is of, and the path of its benchmark."""
    found = read(name)
    commit = found["machine"]["commit"]
    known = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        pytest.skip(f"commit {commit} is not in this copy of the repository")
    return commit, script(found["command"])


def test_the_list_names_results() -> None:
    assert FILES.keys() >= STALE
