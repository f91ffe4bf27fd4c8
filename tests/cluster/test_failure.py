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
launch: learner 3 on n2 was killed by SIGKILL: the others are ended
0: Traceback (most recent call last):
0: RuntimeError: Connection closed by peer
launch: the run failed: learner 3 on n2 was killed by SIGKILL
srun: error: n1: task 0: Exited with exit code 137
srun: launch/slurm: _step_signal: Terminating StepId=12.0
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
launch: learner 0 on n1 ended with status 1: it is lost, and the others go on
launch: learner 2 on n2 ended with status 1 (ValueError: bad): the others are ended
launch: the run failed: learner 2 on n2 ended with status 1 (ValueError: bad)
srun: error: n1: task 0: Exited with exit code 1
slurm: job 12 ended with status 1
"""

# rank 1 raises an error and is replaced, then rank 0 is killed
REPLACED = f"""\
slurm: job 12 starts on n[1-2]
1: {TRACEBACK}
1: ValueError: bad
launch: learner 1 on n2 ended with status 1 (ValueError: bad (x): y): it is started \
again (1 of at most 1)
0: epoch 3
launch: learner 0 on n1 ended with status 9: the others are ended
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
    "killed": (KILLED, Failure(3, "n2", "killed by SIGKILL", ["epoch 1"])),
    "raised": (
        RAISED,
        Failure(
            2,
            "n2",
            "ended with status 1 (ValueError: bad)",
            [TRACEBACK, '  File "a.py", line 3, in <module>', "ValueError: bad"],
        ),
    ),
    "since the last start": (
        RESTARTED,
        Failure(3, "n2", "killed by SIGKILL", ["epoch 1"]),
    ),
    "replaced": (REPLACED, Failure(0, "n1", "ended with status 9", ["epoch 3"])),
    "one task": (
        ONE_TASK,
        Failure(None, "n1", "Exited with exit code 2", ["error: data/x: no such file"]),
    ),
    "prologue": (PROLOGUE, Failure(None, "", "", [PROLOGUE.strip()])),
    "silent": ("", Failure(None, "", "", [])),
    "a launcher is killed": (
        "2: epoch 1\nsrun: error: n2: task 1: Killed\n",
        Failure(None, "n2", "Killed", ["epoch 1"]),
    ),
    "killed and silent": (
        "launch: learner 3 on n2 was killed by SIGKILL: the others are ended\n",
        Failure(3, "n2", "killed by SIGKILL", []),
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
    found = first_failure([*lines, "launch: learner 7 on n2 was killed by SIGKILL: x"])
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
