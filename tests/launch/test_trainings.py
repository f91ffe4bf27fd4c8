"""Real trainings under the launcher: a stop that resumes, and a learner that dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments, write_toy_data
from tests.launch.launched import environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def start(options: list[str], log: Path, *more: str) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", "espnet_distopt.bin.launch", "--nproc", "2", *more]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*launch, "-m", "espnet_distopt.bin.asr_train", *options],
            stdout=file,
            stderr=file,
            env=environment(),
        )


@contextmanager
def killed_at_the_end(process: subprocess.Popen[bytes]) -> Generator[None, None, None]:
    """Kill a launcher that still runs at the end, and so its learners."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def until_exists(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    until(path.exists, process, log)


def until(
    what: Callable[[], bool], process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def has_joined(exp: Path, rank: int) -> bool:
    """Return whether another learner has written that a learner has returned."""
    found = Experiment.read(exp)
    return found is not None and any(
        change.joins and change.rank == rank for change in found.changes
    )


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_adpsgd_goes_on_with_a_replacement_of_a_killed_learner(
    victim: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops on request with the replacement, too, and goes on with all."""
    write_toy_data(tmp_path)
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(tmp_path, exp, "--distopt", "adpsgd")
    more = ("--nproc", "3", "--restarts", "1", "--label")
    run = start([*options, "--max_epoch", "100000"], log, *more)
    with killed_at_the_end(run):
        until_exists(exp / "checkpoint.pth", run, log)
        [process] = learners(run.pid, victim)
        os.kill(process, signal.SIGKILL)
        until(
            lambda: f"learner {victim} has joined again (restart 1)" in log.read_text(),
            run,
            log,
        )
        until(lambda: has_joined(exp, victim), run, log)
        run.send_signal(signal.SIGUSR1)
        assert run.wait(300) == 75, log.read_text()[-3000:]
    said = log.read_text()
    assert f"though not with all learners: replaced: learner {victim} (1 times)" in said
    noticed = said.count(f"WARNING: learner {victim} has died: ")
    followed = said.count(f"WARNING: learner {victim} has died; ")  # By a new leader.
    assert {noticed, followed} in ({1}, {0, 1})
    status.main([str(exp)])
    shown = capsys.readouterr().out
    assert "stopped: saved after" in shown and f"learner {victim} joined" in shown
    done = torch.load(exp / "checkpoint.pth", weights_only=False)["reporter"]["epoch"]
    again = start([*options, "--max_epoch", str(done + 1)], log, *more)
    with killed_at_the_end(again):
        assert again.wait(400) == 0, log.read_text()[-3000:]
    assert "the epoch is repeated" not in log.read_text()
    assert (exp / f"{done + 1}epoch.pth").exists()


def test_allreduce_ends_when_a_learner_dies(tmp_path: Path) -> None:
    write_toy_data(tmp_path)
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(tmp_path, exp, "--distopt", "allreduce")
    more = ("--restarts", "2", "--label")
    endless = start([*options, "--max_epoch", "100000"], log, *more)
    with killed_at_the_end(endless):
        until_exists(exp / "checkpoint.pth", endless, log)
        [victim] = learners(endless.pid, rank=0)
        os.kill(victim, signal.SIGKILL)
        assert endless.wait(200) == 137
    said = log.read_text()
    assert "was killed by SIGKILL: the others are ended" in said
    assert not learners(endless.pid, rank=0) and not learners(endless.pid, rank=1)


def learners(launcher: int, rank: int) -> list[int]:
    """Return the pid of a learner of a launcher, if it runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[1]) == launcher and f"RANK={rank}".encode() in variables:
            found.append(int(folder.name))
    return found
