"""A recipe on a real Slurm, from data to a table, and stopped in every way."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from slurm.daemons import MiniSlurm
from slurm.digits import Digits, finished, until

# The first test waits for the fixtures, in which a recipe and a training run.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def digits(
    daemons: MiniSlurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Digits]:
    """The recipe, after all its stages have run with cmd_backend=slurm."""
    root = tmp_path_factory.mktemp("recipe") / "a tree"
    recipe = Digits(root, daemons.environment["SLURM_CONF"])
    began = time.monotonic()
    code, out, err = finished(recipe.start())
    print(f"{time.monotonic() - began:.0f} s\n{out}{err}")
    assert code == 0, err
    yield recipe
    daemons.cancel_all()


@pytest.fixture(scope="module")
def whole(digits: Digits) -> Path:
    """A training of two learners that nothing interrupts, and without Slurm."""
    code, _, err = finished(digits.train("whole", cmd_backend="local"))
    assert code == 0, err
    return digits.experiment("whole")


def job_of(cluster: MiniSlurm) -> str:
    [number] = cluster.run("squeue", "-h", "-o", "%i").stdout.split()
    return number


def assert_same_models(*experiments: Path) -> None:
    for epoch in (1, 2):
        models = [
            torch.load(experiment / f"{epoch}epoch.pth", weights_only=True)
            for experiment in experiments
        ]
        assert models[0].keys() == models[1].keys()
        for name, tensor in models[0].items():
            assert torch.equal(tensor, models[1][name]), (epoch, name)


def test_from_data_to_a_table(digits: Digits) -> None:
    exp = digits.experiment("exp", 4)
    begun = [e for e in digits.events("exp", 4) if e["event"] == "begin"]
    assert [(e["rank"], e["learners"]) for e in begun] == [(r, 4) for r in range(4)]
    script = (exp / "train.sbatch").read_text()
    for line in ("job-name=fsdd.train.allreduce_4", "nodes=2", "cpus-per-task=2"):
        assert f"#SBATCH --{line}\n" in script
    assert "starts on n[1-2]" in (exp / "train.log").read_text()
    for part in (1, 2):
        log = exp / "decode" / "test" / "log" / f"decode.{part}.log"
        assert f"_{part} ended with status 0" in log.read_text()
    decoded = (exp / "decode" / "test" / "text").read_text().splitlines()
    expected = (digits.directory / "dump" / "test" / "text").read_text().splitlines()
    names = [[line.split()[0] for line in lines] for lines in (decoded, expected)]
    assert names[0] == names[1]
    assert (
        "| asr_allreduce_4 |" in (digits.directory / "exp" / "RESULTS.md").read_text()
    )


def test_signalled_and_preempted_it_ends_as_if_never_stopped(
    digits: Digits, whole: Path, cluster: MiniSlurm
) -> None:
    training = digits.train("stopped")
    until(lambda: digits.trains("stopped", 1), training)
    cluster.run("scancel", "--signal=USR1", job_of(cluster))
    until(lambda: digits.trains("stopped", 2), training)
    cluster.run("sbatch", "-p", "high", "-N4", "--exclusive", "--wrap", "sleep 0.5")
    code, _, err = finished(training)
    assert code == 0, err
    events = digits.events("stopped")
    stops = [e for e in events if e["event"] == "stop"]
    assert len(stops) == 4
    assert all(stop["saved"] and 0 <= stop["step"] < 120 for stop in stops)
    resumed = [e for e in events if e["event"] == "resume"]
    assert {e["slurm_restarts"] for e in resumed} == {1, 2}
    log = (digits.experiment("stopped") / "train.log").read_text()
    assert "restart 2 of at most 10" in log
    assert "goes on after step" in log
    assert_same_models(whole, digits.experiment("stopped"))


def test_killed_and_cancelled_it_can_go_on(
    digits: Digits, whole: Path, cluster: MiniSlurm
) -> None:
    training = digits.train("ended")
    until(lambda: digits.trains("ended", 1), training)
    [pid] = [e["pid"] for e in digits.events("ended") if e["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finished(training)
    assert code == 137
    assert time.monotonic() - killed < 20
    assert "fsdd.train.allreduce_2 (job " in err
    assert "rank 1 on n2 failed first: killed by SIGKILL" in err
    assert "last lines of rank 1:" in err
    assert len(err.splitlines()) < 20

    training = digits.train("ended")
    until(lambda: digits.trains("ended", 2), training)
    cluster.run("scancel", job_of(cluster))
    code, _, err = finished(training)
    assert code != 0
    assert "cancelled" in err
    stops = [e for e in digits.events("ended") if e["event"] == "stop"]
    assert [stop["saved"] for stop in stops] == [True] * 2

    code, _, err = finished(digits.train("ended"))
    assert code == 0, err
    assert_same_models(whole, digits.experiment("ended"))


def test_after_the_last_requeue_the_recipe_ends_with_75(
    digits: Digits, cluster: MiniSlurm
) -> None:
    settings = digits.directory / "once.yaml"
    settings.write_text("{tasks_per_node: 2, requeues: 0}\n")
    options = ("--slurm_config", "once.yaml", "--expdir", "exp", "--distopt", "adpsgd")
    training = digits.start(*options, "--stage", "11", "--nlearners", "2")
    log = digits.directory / "exp/asr_adpsgd_2/distopt/learner1.jsonl"
    until(log.exists, training)
    cluster.run("scancel", "--signal=USR1", job_of(cluster))
    code, _, err = finished(training)
    assert code == 75
    stopped, how = err.splitlines()
    assert "was stopped, after its last requeue: exp/asr_adpsgd_2/train.log" in stopped
    assert how == (
        "training exp/asr_adpsgd_2 was stopped on request; "
        "the same command again goes on from there"
    )


def test_the_whole_recipe_is_queued(digits: Digits, cluster: MiniSlurm) -> None:
    options = (
        "--distopt",
        "adpsgd",
        "--nlearners",
        "2",
        "--train_args",
        "--max_epoch 1",
    )
    began = time.monotonic()
    code, out, err = finished(
        digits.start(*options, "--submit_all", "true", "--expdir", "all")
    )
    assert code == 0, err
    queued = re.findall(r" job (\d+): ([^,]+)", out)
    assert [name for _, name in queued] == [
        f"fsdd.{name}"
        for name in (
            *("data", "format", "tokens", "stats", "train.adpsgd_2"),
            *("decode.adpsgd_2.test", "merge.adpsgd_2.test", "score"),
        )
    ]
    assert len({job for job, _ in queued}) == 8
    queue = subprocess.Popen(["sleep", "280"], stdout=-1, stderr=-1, text=True)
    try:
        until(lambda: not cluster.run("squeue", "-h").stdout, queue)
    finally:
        queue.kill()
        queue.communicate()
    print(f"{time.monotonic() - began:.0f} s")
    log = digits.directory / "all" / "log" / "score.log"
    assert log.exists(), sorted(Path(log.parent).iterdir())
    assert "ended with status 0" in log.read_text()
    assert "| asr_adpsgd_2 |" in (digits.directory / "all" / "RESULTS.md").read_text()
