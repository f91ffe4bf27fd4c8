"""Real trainings under the launcher: a stop that resumes, and a learner that dies."""

import os
import signal
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments, write_toy_data
from tests.launch.launched import Launched

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def start(tmp_path: Path, options: list[str], *more: str) -> Launched:
    command = ["-m", "espnet_distopt.bin.asr_train", *options]
    more = ("--nproc", "2", "--label", *more)
    return Launched(tmp_path, *more, command=command, log=tmp_path / "log")


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
    more = ("--nproc", "3", "--restarts", "1")
    run = start(tmp_path, [*options, "--max_epoch", "100000"], *more)
    run.until((exp / "checkpoint.pth").exists)
    [process] = learners(run.process.pid, victim)
    os.kill(process, signal.SIGKILL)
    again = f"learner {victim} has joined again (restart 1)"
    run.until(lambda: again in log.read_text())
    run.until(lambda: has_joined(exp, victim))
    run.process.send_signal(signal.SIGUSR1)
    assert run.process.wait(300) == 75, run.logged()
    said = log.read_text()
    assert f"though not with all learners: replaced: learner {victim} (1 times)" in said
    noticed = said.count(f"WARNING: learner {victim} has died: ")
    followed = said.count(f"WARNING: learner {victim} has died; ")  # By a new leader.
    assert {noticed, followed} in ({1}, {0, 1})
    status.main([str(exp)])
    shown = capsys.readouterr().out
    assert "stopped: saved after" in shown and f"learner {victim} joined" in shown
    done = torch.load(exp / "checkpoint.pth", weights_only=False)["reporter"]["epoch"]
    resumed = start(tmp_path, [*options, "--max_epoch", str(done + 1)], *more)
    assert resumed.process.wait(400) == 0, resumed.logged()
    assert "the epoch is repeated" not in log.read_text()
    assert (exp / f"{done + 1}epoch.pth").exists()


def test_allreduce_ends_when_a_learner_dies(tmp_path: Path) -> None:
    write_toy_data(tmp_path)
    exp = tmp_path / "exp"
    options = arguments(tmp_path, exp, "--distopt", "allreduce")
    endless = start(tmp_path, [*options, "--max_epoch", "100000"], "--restarts", "2")
    endless.until((exp / "checkpoint.pth").exists)
    [victim] = learners(endless.process.pid, rank=0)
    os.kill(victim, signal.SIGKILL)
    assert endless.process.wait(200) == 137
    said = (tmp_path / "log").read_text()
    assert "was killed by SIGKILL: the others are ended" in said
    assert not any(learners(endless.process.pid, rank) for rank in (0, 1))


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
