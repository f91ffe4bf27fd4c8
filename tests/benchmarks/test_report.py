"""A report says all that a reader needs to judge and to repeat its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import report

from tests.benchmarks.test_commands import COMMANDS


def written(folder: Path, **changed: object) -> str:
    given: dict = {"seeds": [3, 4], "repeats": 2, "arguments": [], **changed}
    path = report.write_report("x", False, folder, ["| a |"], "A table.", 1, **given)
    return path.with_suffix(".md").read_text()


def test_it_has_machine_commit_seeds_repeats_and_command(tmp_path: Path) -> None:
    text = written(tmp_path, arguments=["--repeats", "7"])
    where = report.machine()
    assert f"Machine: {where['processor']}, {where['cores']} cores" in text
    assert f"Commit: {where['commit']}." in text
    assert "Seeds: 3, 4. Repeats: 2 with each seed." in text
    assert "Command: `python benchmarks/x.py --repeats 7`\n" in text
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["command"] == "python benchmarks/x.py --repeats 7"
    assert (data["seeds"], data["repeats"]) == ([3, 4], 2)


def test_one_run_is_called_one_run(tmp_path: Path) -> None:
    assert "Seeds: 3. Repeats: one run." in written(tmp_path, seeds=[3], repeats=1)
    assert "Seeds: none" in written(tmp_path, seeds=[])
    assert report.how_often(1) == "one run"
    assert report.spread([0.5], ".2f") == "0.50"
    assert report.spread([0.5, 0.25, 1.0], ".2f") == "0.50 (0.25 - 1.00)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--quick", "--out", "/home/me/x", "a b"], "--quick 'a b'"),
        (["--out=/home/me/x", "--workers", "2"], "--workers 2"),
        (["--fsdd", "/data/fsdd"], ""),
    ],
)
def test_the_command_names_no_folder_of_this_machine(
    given: list[str], expected: str
) -> None:
    command = report.command_line("x", given, "FSDD=/path")
    assert command == f"FSDD=/path python benchmarks/x.py {expected}".strip()


def test_a_command_reports_the_options_that_it_was_given(tmp_path: Path) -> None:
    given = ["--quick", "--out", str(tmp_path)]
    command = [sys.executable, str(COMMANDS / "hierarchy.py"), *given]
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    text = (tmp_path / "hierarchy.md").read_text()
    assert text.endswith("Command: `python benchmarks/hierarchy.py --quick`\n")
    assert "Repeats: one run." in text


def test_no_benchmark_imports_tests() -> None:
    for path in COMMANDS.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [x for x in lines if x.startswith(("from tests", "import tests"))]
