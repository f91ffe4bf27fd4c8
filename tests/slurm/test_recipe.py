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

# The first test waits for the fixture, in which a recipe runs.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def digits(
    daemons: MiniSlurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Digits]:
    """The recipe, after all its stages have run with cmd_backend=slurm."""
    root = tmp_path_factory.mktemp("recipe") / "a tree"
    recipe = Digits(root, daemons.environment["SLURM_CONF"])
    code, _, err = finished(recipe.start())
    assert code == 0, err
    yield recipe
    daemons.cancel_all()


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
    exp = digits.experiment("exp")
    begun = [e for e in digits.events("exp") if e["event"] == "begin"]
    assert [(e["rank"], e["learners"]) for e in begun] == [(r, 2) for r in range(2)]
    script = (exp / "train.sbatch").read_text()
    for line in ("job-name=fsdd.train.allreduce_2", "nodes=2", "cpus-per-task=2"):
        assert f"#SBATCH --{line}\n" in script
    assert "starts on n[1-2]" in (exp / "train.log").read_text()
    for part in (1, 2):
        log = exp / "decode" / "test" / "log" / f"decode.{part}.log"
        assert f"_{part} ended with status 0" in log.read_text()
    decoded = (exp / "decode" / "test" / "text").read_text().splitlines()
    expected = (digits.directory / "dump" / "test" / "text").read_text().splitlines()
    names = [[line.split()[0] for line in lines] for lines in (decoded, expected)]
    assert names[0] == names[1]
    results = (digits.directory / "exp" / "RESULTS.md").read_text()
    assert "| asr_allreduce_2 |" in results


def test_stopped_in_every_way_it_ends_as_if_never_stopped(
    digits: Digits, cluster: MiniSlurm
) -> None:
    """Requeued, killed, stopped without a requeue, and cancelled."""
    training = digits.train("stopped")
    until(lambda: digits.trains("stopped", 1), training)
    cluster.run("scancel", "--signal=USR1", job_of(cluster))
    until(lambda: digits.trains("stopped", 2), training)
    assert len(stops(digits)) == 2
    resumed = [e for e in digits.events("stopped") if e["event"] == "resume"]
    assert [e["slurm_restarts"] for e in resumed] == [1, 1]
    log = (digits.experiment("stopped") / "train.log").read_text()
    assert "restart 1 of at most 10" in log
    assert "goes on after step" in log
    [pid] = [e["pid"] for e in resumed if e["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finished(training)
    assert code == 137
    assert time.monotonic() - killed < 20
    assert "fsdd.train.allreduce_2 (job " in err
    assert "rank 1 on n2 failed first: killed by SIGKILL" in err
    assert "last lines of rank 1:" in err
    assert len(err.splitlines()) < 20

    (digits.directory / "once.yaml").write_text("{partition: low, requeues: 0}\n")
    training = digits.train("stopped", "--slurm_config", "once.yaml")
    until(lambda: digits.trains("stopped", 3), training)
    cluster.run("scancel", "--signal=USR1", job_of(cluster))
    code, _, err = finished(training)
    assert code == 75
    assert len(stops(digits)) == 4
    exp = "stopped/asr_allreduce_2"
    stopped, how = err.splitlines()
    assert f"was stopped, after its last requeue: {exp}/train.log" in stopped
    assert how == (
        f"training {exp} was stopped on request; "
        "the same command again goes on from there"
    )

    training = digits.train("stopped")
    until(lambda: digits.trains("stopped", 4), training)
    cluster.run("scancel", job_of(cluster))
    code, _, err = finished(training)
    assert code != 0
    assert "cancelled" in err
    assert len(stops(digits)) == 6

    code, _, err = finished(digits.train("stopped"))
    assert code == 0, err
    assert_same_models(digits.experiment("exp"), digits.experiment("stopped"))


def stops(digits: Digits) -> list[int]:
    """Return the steps after which learners have saved their state so far."""
    events = [e for e in digits.events("stopped") if e["event"] == "stop"]
    assert all(stop["saved"] and 0 <= stop["step"] < 120 for stop in events)
    return [stop["step"] for stop in events]


def test_the_rest_of_the_recipe_is_queued_at_once(
    digits: Digits, cluster: MiniSlurm
) -> None:
    options = ("--distopt", "adpsgd", "--train_args", "--max_epoch 1")
    submitted = digits.start_at_training("all", "--submit_all", "true", *options)
    code, out, err = finished(submitted)
    assert code == 0, err
    queued = re.findall(r" job (\d+): ([^,]+)", out)
    parts = ("train.adpsgd_2", "decode.adpsgd_2.test", "merge.adpsgd_2.test", "score")
    assert [name for _, name in queued] == [f"fsdd.{part}" for part in parts]
    assert len({job for job, _ in queued}) == len(parts)
    queue = subprocess.Popen(["sleep", "280"], stdout=-1, stderr=-1, text=True)
    try:
        until(lambda: not cluster.run("squeue", "-h").stdout, queue)
    finally:
        queue.kill()
        queue.communicate()
    log = digits.directory / "all" / "log" / "score.log"
    assert log.exists(), sorted(Path(log.parent).iterdir())
    assert "ended with status 0" in log.read_text()
    assert "| asr_adpsgd_2 |" in (digits.directory / "all" / "RESULTS.md").read_text()
