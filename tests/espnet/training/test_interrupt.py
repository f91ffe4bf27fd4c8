"""Ctrl-C under a launcher: everything ends soon, and the run can be resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from espnet_distopt.espnet.training.checkpoints import is_whole
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import read, train

LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "launch": ["espnet_distopt.bin.launch", "--nproc", "2"],
}


def start(launcher: str, options: list[str], log: Path) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", *LAUNCHERS[launcher]]
    command = [*launch, "-m", "espnet_distopt.bin.asr_train"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command, *options],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_ends_all_processes_and_leaves_a_state_that_resumes(
    launcher: str,
    tmp_path: Path,
) -> None:
    write_toy_data(tmp_path)
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(tmp_path, exp, "--distopt", "adpsgd")
    endless = start(launcher, [*options, "--max_epoch", "100000"], log)
    try:
        assert wait_for((exp / "distopt" / "checkpoint.pth").exists, 90), (
            log.read_text()
        )
        os.killpg(endless.pid, signal.SIGINT)
        endless.wait(40)
        assert endless.returncode != 0
        if launcher == "launch":
            assert endless.returncode == 130
            said = "stopped by Ctrl-C, and its state is saved"
            assert said in log.read_text()
        assert wait_for(lambda: group_is_empty(endless.pid), 20)
    finally:
        if not group_is_empty(endless.pid):
            os.killpg(endless.pid, signal.SIGKILL)
    assert is_whole(exp / "checkpoint.pth") or is_whole(exp / "distopt/checkpoint.pth")
    done = max(
        int(p.name.split(".")[1][:-5]) for p in exp.glob("distopt/learner0.*epoch.pth")
    )
    # The resumed run needs no launcher, and these processes start at once.
    options += ["--max_epoch", str(done + 1)]
    assert train(options, 2, tmp_path / "meet", log) == [0, 0], read(log)
    assert "The training was resumed using" in read(log)
    assert is_whole(exp / f"{done + 1}epoch.pth")
