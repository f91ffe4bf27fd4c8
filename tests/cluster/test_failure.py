"""Which rank failed first, from logs as srun writes them."""

from pathlib import Path

import pytest

from espnet_distopt.cluster.failure import (
    Failure,
    first_failure,
    last_line,
    written_status,
)

TRACEBACK = "Traceback (most recent call last):"

KILLED = """\
slurm: job 12 starts on n[1-2]
3: epoch 1
2: epoch 1
srun: error: n2: task 3: Killed
srun: launch/slurm: _step_signal: Terminating StepId=12.0
0: slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***
0: Traceback (most recent call last):
0: RuntimeError: Connection closed by peer
srun: error: n1: task 0: Exited with exit code 1
srun: error: n2: task 2: Terminated
slurm: job 12 ended with status 137
"""

# rank 2 fails, but is still ending itself when rank 0, which missed it, has ended
RAISED = f"""\
slurm: job 12 starts on n[1-2]
2: {TRACEBACK}
2:   File "a.py", line 3, in <module>
2: ValueError: bad
0: {TRACEBACK}
0: RuntimeError: Connection closed by peer
srun: error: n1: tasks 0-1: Exited with exit code 1
srun: error: n2: task 2: Exited with exit code 1
slurm: job 12 ended with status 1
"""

RESTARTED = RAISED + KILLED.replace("starts on n[1-2]", "starts on n3: restart 1 of 2")

ONE_TASK = """\
slurm: job 12 starts on n1
error: data/x: no such file
srun: error: n1: task 0: Exited with exit code 2
slurm: job 12 ended with status 2
"""

PROLOGUE = "slurm_script: line 14: module: command not found\n"

CASES = {
    "killed": (KILLED, Failure(3, "n2", "Killed", ["epoch 1"])),
    "raised": (
        RAISED,
        Failure(
            2,
            "n2",
            "Exited with exit code 1",
            [TRACEBACK, '  File "a.py", line 3, in <module>', "ValueError: bad"],
        ),
    ),
    "since the last start": (RESTARTED, Failure(3, "n2", "Killed", ["epoch 1"])),
    "one task": (
        ONE_TASK,
        Failure(None, "n1", "Exited with exit code 2", ["error: data/x: no such file"]),
    ),
    "prologue": (PROLOGUE, Failure(None, "", "", [PROLOGUE.strip()])),
    "silent": ("", Failure(None, "", "", [])),
    "killed and silent": (
        "srun: error: n2: task 3: Killed\n",
        Failure(3, "n2", "Killed", []),
    ),
    "out of memory": (
        "10: step\nsrun: error: n2: tasks 8,10-11: Out Of Memory\n",
        Failure(8, "n2", "Out Of Memory", []),
    ),
    "not yet reported": (
        f"1: {TRACEBACK}\n1: ValueError: bad\n0: epoch 2\n",
        Failure(None, "", "", [TRACEBACK, "ValueError: bad"]),
    ),
}


@pytest.mark.parametrize(("log", "expected"), CASES.values(), ids=CASES)
def test_first_failure(log: str, expected: Failure) -> None:
    assert first_failure(log.splitlines(keepends=True)) == expected


def test_only_the_last_lines_are_kept() -> None:
    lines = [f"7: line {n}\n" for n in range(1000)]
    found = first_failure([*lines, "srun: error: n2: task 7: Killed\n"])
    assert found.lines == [f"line {n}" for n in range(985, 1000)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n12: b\n\n", "b"),
        ("a\n0:  10%\r0:  20%", "20%"),
        ("", ""),
        (None, ""),
        ("x" * 10000 + "\nend\n", "end"),
        (b"\xff\n", "\ufffd"),
    ],
)
def test_last_line(tmp_path: Path, text: str | bytes | None, expected: str) -> None:
    log = tmp_path / "log"
    if text is not None:
        log.write_bytes(text.encode() if isinstance(text, str) else text)
    assert last_line(log) == expected


def test_written_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert written_status(log) is None
    log.write_text(KILLED)
    assert written_status(log) == 137
