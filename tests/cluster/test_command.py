"""The command: batch scripts as it prints them, and what it refuses."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet_distopt.bin.slurm import main
from tests.refusal import error_of

GOLDEN = Path(__file__).parent / "golden"
ROOT = GOLDEN.parents[2]
SETTINGS = """
account: speech
prologue: ["module load cuda", "export NCCL_SOCKET_IFNAME=ib0"]
train:
  partition: gpu,long
  time: 1-00:00:00
  gpus_per_node: 4
  cpus_per_task: 6
  mem_per_cpu: 4G
  constraint: v100|a100
  requeues: 3
  signal_seconds: 300
  extra: ["--exclude=n7"]
decode:
  requeues: 0
"""
COMMANDS = {
    "plain": ["--name", "job", "--log", "job.log", "--", "true"],
    "train": [
        *("--name", "train_adpsgd", "--stage", "train", "--settings", "slurm.yaml"),
        *("--log", "exp/x/train.log", "--nodes", "8", "--tasks_per_node", "4"),
        *("--after", "12,14", "--", "python3", "-m", "espnet_distopt.bin.asr_train"),
        *("--config", "conf/a b.yaml", "--max_epoch", "3", "--note", "it's JOB"),
    ],
    "decode": [
        *("--name", "decode", "--stage", "decode", "--settings", "slurm.yaml"),
        *("--log", "exp/x/log/asr.JOB.log", "--array", "32%8"),
        *("--", "python3", "decode.py", "--keys", "keys.JOB.scp", "--out", "part JOB"),
        *("--note", "NOJOB"),
    ],
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm.yaml").write_text(SETTINGS)
    environ = {"PATH": "/bin:/x y", "OMP_NUM_THREADS": "1", "SECRET": "1"}
    monkeypatch.setattr(os, "environ", {**environ, "NCCL_DEBUG": "WARN"})
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_dry_run(
    name: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To accept a new script: copy the one that the failure names over the golden."""
    main(["--dry_run", *COMMANDS[name]])
    script = capsys.readouterr().out.replace(str(directory), "/recipe")
    script = script.replace(sys.executable, "python")
    golden = GOLDEN / f"{name}.sbatch"
    found = directory / golden.name
    found.write_text(script)
    assert script == golden.read_text(), f"cp {found} {golden}"
    assert not (directory / "exp").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_scripts_are_good_bash(name: str) -> None:
    script = GOLDEN / f"{name}.sbatch"
    assert subprocess.run(["/bin/bash", "-n", script], check=False).returncode == 0
    shellcheck = shutil.which("shellcheck", path=f"{ROOT}/.venv/bin:/usr/bin")
    if shellcheck:
        assert subprocess.run([shellcheck, script], check=False).returncode == 0


TASKS = {
    "one": ("1", 4, ["--nodes=1", "--cpus-per-task=2"], None),
    "part of a node": ("3", 4, ["--nodes=1", "--cpus-per-task=6"], "3"),
    "full nodes": ("64", 8, ["--nodes=8", "--cpus-per-task=16"], "8"),
    "uneven": ("9", 4, ["--nodes=3", "--cpus-per-task=8"], "4,4,1"),
}


@pytest.mark.parametrize(
    ("tasks", "each", "expected", "nproc"), TASKS.values(), ids=TASKS
)
def test_so_many_tasks(
    tasks: str,
    each: int,
    expected: list[str],
    nproc: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("slurm.yaml").write_text(
        f"tasks_per_node: {each}\nnodes: 99\ncpus_per_task: 2\n"
    )
    script = printed(capsys, "--tasks", tasks)
    found = re.findall("^#SBATCH (--(?:nodes|ntasks|cpus).*)", script, re.M)
    assert found == [expected[0], "--ntasks-per-node=1", expected[1]]
    assert re.findall(r"launch --nproc (\S+) ", script) == ([nproc] if nproc else [])


def test_learners_are_replaced_and_a_node_may_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("slurm.yaml").write_text("train: {no_kill: true}\n")
    options = ("--stage", "train", "--tasks", "2", "--restarts", "4")
    script = printed(capsys, *options)
    assert "#SBATCH --no-kill\n" in script
    assert "srun --export=ALL --kill-on-bad-exit=0 --no-kill " in script
    assert "bin.launch --nproc 1 --restarts 4 --label -- \\\n    true &" in script


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the batch script by these options and slurm.yaml."""
    usual = ["--dry_run", "--name", "job", "--log", "x.log", "--settings", "slurm.yaml"]
    main([*usual, *options, "--", "true"])
    return capsys.readouterr().out


def asked(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return what a job asks for by these options and slurm.yaml."""
    return re.findall("^#SBATCH (.*)", printed(capsys, *options), re.M)


@pytest.mark.parametrize(
    ("settings", "each", "expected"),
    [
        ("{tasks_per_node: 8}", "1", "--gpus-per-node=8"),
        ("{tasks_per_node: 4, gpus_per_node: 8}", "1", "--gpus-per-node=8"),
        ("{tasks_per_node: 4, gpus_per_node: 2}", "0", "--gpus-per-node=2"),
        ("{tasks_per_node: 8}", "0", None),
        ('{tasks_per_node: 4, extra: ["--gres=gpu:a100:4"]}', "1", None),
    ],
)
def test_gpus(
    settings: str,
    each: str,
    expected: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("slurm.yaml").write_text(f"train: {settings}\n")
    options = ("--stage", "train", "--tasks", "64", "--gpus_per_task", each)
    found = [o for o in asked(capsys, *options) if o.startswith("--gpus")]
    assert found == ([expected] if expected else [])


def test_too_few_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slurm.yaml").write_text("{tasks_per_node: 8, gpus_per_node: 4}\n")
    options = ["--name", "job", "--log", "x.log", "--settings", "slurm.yaml"]
    options += ["--tasks", "16", "--gpus_per_task", "1", "--", "true"]
    assert "gpus_per_node is 4, but 8 tasks on a node need 8" in error_of(
        main, options, capsys
    )


def test_without_slurm(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["PATH"] = "/nowhere"
    text = error_of(main, COMMANDS["train"], capsys)
    assert "sbatch, scontrol, scancel not on PATH" in text
    assert "cmd_backend=local needs none" in text
    assert not (directory / "exp").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "a job"], "--name 'a job': expected letters"),
        (["--log", "100%.log"], "--log 100%.log: % and"),
        (["--log", "/"], "--log /: a directory, expected the name of a file"),
        (["--log", ""], "--log .: a directory, expected the name of a file"),
        (["--array", "0"], "--array 0: expected N or N%LIMIT"),
        (["--array", "1-4"], "--array 1-4: expected N or N%LIMIT"),
        (["--array", "4"], "--log job.log: an array needs the word JOB in it"),
        (["--array", "4", "--log", "JOBS.log"], "an array needs the word JOB"),
        (["--after", "12,x"], "--after 12,x: expected job ids"),
        (["--restarts", "-1"], "--restarts -1: expected at least 0"),
        (["--nodes", "0"], "--nodes 0: expected at least 1"),
        (["--tasks", "0"], "--tasks 0: expected at least 1"),
        (
            ["--nodes", "2", "--tasks", "8"],
            "--nodes 2: the machines follow from --tasks and --tasks_per_node",
        ),
        (["--cpus_per_task", "-1"], "--cpus_per_task -1: expected at least 1"),
        (["--settings", "none.yaml"], "none.yaml: No such file"),
    ],
)
def test_bad_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--name", "job", "--log", "job.log", "--dry_run"]
    assert message in error_of(main, [*usual, *options, "--", "true"], capsys)


def pretend_slurm(directory: Path) -> None:
    """Put commands of Slurm on the PATH that accept every job."""
    programs = directory / "bin"
    programs.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        (programs / name).write_text("#!/bin/sh\necho '17;cluster'\n")
        (programs / name).chmod(0o755)
    os.environ["PATH"] = f"{programs}:/bin:/usr/bin"


def test_a_log_that_cannot_be_written(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_slurm(directory)
    (directory / "logs").touch()
    options = ["--name", "job", "--log", "logs/job.log", "--nowait", "--", "true"]
    assert "logs/job.sbatch: cannot be written: " in error_of(main, options, capsys)


def test_earlier_logs_are_kept(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_slurm(directory)
    for text in ("first", "second"):
        (directory / "job.log").write_text(text)
        main(["--nowait", *COMMANDS["plain"]])
    assert capsys.readouterr().out == "17\n17\n"
    assert (directory / "job.1.log").read_text() == "first"
    assert (directory / "job.2.log").read_text() == "second"
    assert not (directory / "job.log").exists()
    assert re.search("^#SBATCH", (directory / "job.sbatch").read_text(), re.M)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_while_sbatch_and_scancel_run_leave_no_job_behind(
    number: signal.Signals, directory: Path
) -> None:
    pretend_slurm(directory)
    for name, text in {
        "sbatch": f"kill -{number.value} $PPID\nsleep 0.2\necho 17",
        "scancel": f'kill -{number.value} $PPID\nsleep 0.2\necho "$@" >cancelled',
        "scontrol": "echo Invalid job id >&2\nexit 1",
    }.items():
        (directory / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    done = subprocess.run(
        [sys.executable, "-m", "espnet_distopt.bin.slurm", *COMMANDS["plain"]],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # Whoever starts the tests in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 130
    assert done.stderr == "job 17 (job) cancelled\nstopped by Ctrl-C\n"
    assert (directory / "cancelled").read_text() == "17\n"
