"""Results say how they were made, and with which code. Exceptions are named here."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = {str(p.relative_to(RESULTS)): p for p in sorted(RESULTS.rglob("*.json"))}

UNTRACEABLE = {"trainings/trainings_fsdd.json"}
"""Results from before reports named their commit, or of code that was not committed.

They are to be measured again; the list only gets shorter.
"""

STALE = {"chaos.json"}
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
    assert is_traceable(read(name)) == (name not in UNTRACEABLE)


@pytest.mark.parametrize("name", sorted(FILES.keys() - UNTRACEABLE))
def test_a_result_is_of_the_benchmark_as_it_is(name: str) -> None:
    found = read(name)
    commit, path = found["machine"]["commit"], script(found["command"])
    git = ["git", "-C", str(ROOT)]
    known = [*git, "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        pytest.skip(f"commit {commit} is not in this copy of the repository")
    changed = subprocess.run(
        [*git, "diff", "--quiet", commit, "--", path], check=False
    ).returncode
    assert changed in (0, 1)
    assert bool(changed) == (name in STALE)


def test_the_lists_name_results() -> None:
    assert FILES.keys() >= UNTRACEABLE | STALE
    assert not UNTRACEABLE & STALE
