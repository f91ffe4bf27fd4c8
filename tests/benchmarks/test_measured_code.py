"""What a benchmark runs is found, and a change of it is noticed."""

import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import measured_code
from tests.benchmarks.measured_code import changed_since, measured, own_code


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("memory", "benchmarks/memory.py"),
        ("memory", "espnet_distopt/algorithms/gossip/snapshot.py"),
        ("memory", "espnet_distopt/algorithms/gossip/compiled_passes.py"),
        ("straggler", "benchmarks/emulated/straggler_runs.py"),
        ("straggler", "benchmarks/emulated/peers/ddp.py"),  # its name is put together
        ("healing", "espnet_distopt/launch/supervisor.py"),  # in another process
        ("shorten", "espnet_distopt/corpora/audio/shorten_blocks.py"),
    ],
)
def test_what_a_benchmark_runs(script: str, module: str) -> None:
    assert module in measured(f"benchmarks/{script}.py")


def test_what_a_benchmark_does_not_run() -> None:
    found = measured("benchmarks/shorten.py")
    assert not [path for path in found if "algorithms" in path]
    assert not measured("benchmarks/memory.py") & measured("benchmarks/blstm.py")
    assert "benchmarks/memory.py" not in measured("benchmarks/passes.py")


def test_the_code_of_a_benchmark_itself() -> None:
    assert own_code("benchmarks/memory.py") == {
        "benchmarks/memory.py",
        "benchmarks/emulated/learners.py",
    }


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("x = 1\n", "x = 2\n", True),
        ("x = 1\n", '"""About x."""\n\nx = 1  # it is one\n', False),
        ("def f(): return 1\n", 'def f():\n    """One."""\n    return 1\n', False),
        ("def f(): return 1\n", "def f():\n    return 'one'\n", True),
        (None, "x = 1\n", True),
    ],
)
def test_only_code_counts_as_a_change(
    before: str | None,
    after: str,
    changed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    if before is not None:
        (tmp_path / "a.py").write_text(before)
        git("add", "a.py")
    git("commit", "--quiet", "--allow-empty", "--message", "before")
    (tmp_path / "a.py").write_text(after)
    git("add", "a.py")
    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    monkeypatch.setattr(measured_code, "SOURCES", {"a.py": after})
    found = changed_since(git("rev-parse", "HEAD"), {"a.py"})
    assert found == ["a.py"] * changed
