"""Lightning's Slurm plug-in, with the strategy: a fit is told to stop, and goes on."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.daemons import MiniSlurm

ROOT = Path(__file__).parents[2]
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=fit --nodes=1 --ntasks-per-node=2 --requeue --open-mode=append
#SBATCH --output={folder}/log
export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 PYTHONPATH={root}
exec srun {python} {root}/tests/slurm/requeued.py {folder}
"""


def until(what: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 200
    while not what():
        said = log.read_text() if log.exists() else ""
        failed = time.monotonic() > deadline or "Exited with exit code 1" in said
        assert not failed, f"waited in vain: {said[-3000:]}"
        time.sleep(0.1)


def places(folder: Path, rank: int) -> set[tuple[int, ...]]:
    """Return restart, epoch and batch of each step of a learner."""
    return {tuple(step[:3]) for step in steps(folder, "requeued", rank)}


def steps(folder: Path, name: str, rank: int) -> list[Any]:
    """Return restart, epoch, batch and samples of each step of a learner."""
    path = folder / f"{name}.{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(600)
def test_a_fit_is_requeued_within_an_epoch_and_goes_on_exactly(
    cluster: MiniSlurm, tmp_path: Path
) -> None:
    script, log = tmp_path / "fit.sbatch", tmp_path / "log"
    names = {"folder": tmp_path, "root": ROOT, "python": sys.executable}
    script.write_text(SCRIPT.format(**names))
    waiting = {(0, 1, 2)}
    job = cluster.run("sbatch", "--parsable", str(script)).stdout.strip()
    until(lambda: waiting <= places(tmp_path, 0) & places(tmp_path, 1), log)
    told = cluster.run("scancel", "--signal=USR1", job)
    assert told.returncode == 0, told.stderr
    until(lambda: all((tmp_path / f"{rank}.json").exists() for rank in (0, 1)), log)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["requeued"] == found["whole"]
        requeued = steps(tmp_path, "requeued", rank)
        # The stop was within the second epoch, and no batch was repeated or left out.
        restarts = [restart for restart, epoch, *_ in requeued if epoch == 1]
        assert len(restarts) == 8
        assert set(restarts) == {0, 1}
        whole = steps(tmp_path, "whole", rank)
        assert [step[1:] for step in requeued] == [step[1:] for step in whole]
    assert "Traceback" not in log.read_text()
