"""What a batch script does when its program was stopped, with stand-ins for Slurm."""

import os
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.bin.slurm import main
from espnet_distopt.errors import STOPPED

SCONTROL = """
echo "$1" >>asked
answer=$(sed -n "$(wc -l <asked)p" answers)
[ "$answer" != silence ] || exit 1
echo "JobId=7 JobState=$answer Reason=None"
"""
PROGRAMS = {"srun": f"exit {STOPPED}", "scontrol": SCONTROL, "sleep": "true"}
REQUEUED = "stopped (status 75): requeue 1 of at most 10"
FAILED = "could not be requeued: submit it to go on"
THRICE = ["silence"] * 3


@pytest.mark.parametrize(
    ("answers", "asked", "said"),
    [
        (["RUNNING", ""], ["show", "requeue"], [REQUEUED]),
        (["CANCELLED"], ["show"], ["was stopped by Slurm (status 75)"]),
        (["silence", "CANCELLED"], ["show"] * 2, ["was stopped by Slurm (status 75)"]),
        (
            ["silence", "silence", "RUNNING", "silence", ""],
            [*["show"] * 3, *["requeue"] * 2],
            [REQUEUED],
        ),
        ([*THRICE, ""], [*["show"] * 3, "requeue"], [REQUEUED]),
        (THRICE * 2, [*["show"] * 3, *["requeue"] * 3], [REQUEUED, FAILED]),
    ],
)
def test_the_controller_is_asked_until_it_answers(
    answers: list[str],
    asked: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "answers").write_text("\n".join(answers) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    main(["--dry_run", "--name", "job", "--log", "job.log", "--", "true"])
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    done = subprocess.run(
        ["bash", "-c", capsys.readouterr().out],
        env={**os.environ, **job},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == STOPPED
    lines = [x for x in done.stdout.splitlines() if x.startswith("slurm: ")]
    assert lines == [f"slurm: job 7 {line}" for line in ("starts on n1", *said)]
    assert (tmp_path / "asked").read_text().split() == asked
