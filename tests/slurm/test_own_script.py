"""The batch script of docs/cluster.md for a command of one's own."""

import re
import sys
from pathlib import Path

from slurm.daemons import MiniSlurm
from slurm.test_jobs import ROOT, TRAINER, done_after, last_step, shown, trains, until


def script() -> str:
    """Return the script of the page, for smaller nodes and a stand-in of a training."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    (text,) = re.findall(r"```bash\n(#SBATCH .*?)```", page, re.DOTALL)
    launch = f"{sys.executable} -m espnet_distopt.bin.launch"
    for old, new in (
        ("--cpus-per-task=32", "--cpus-per-task=2"),
        (" --gpus-per-node=4", ""),
        ("distopt launch --nproc 4", f"{launch} --nproc 2"),
    ):
        assert old in text
        text = text.replace(old, new)
    command = " ".join((*TRAINER, "30"))
    text, count = re.subn(r"-m espnet_distopt\.bin\.asr_train.*", f"-- {command}", text)
    assert count == 1
    head = f"#!/usr/bin/env bash\n#SBATCH --output=own.log\n#SBATCH --requeue\n{text}"
    return head.replace("srun ", f"export PYTHONPATH='{ROOT}'\nsrun ", 1)


def test_a_script_of_ones_own_is_requeued_and_goes_on(cluster: MiniSlurm) -> None:
    Path("own.sbatch").write_text(script())
    where = ("--chdir", str(Path.cwd()), str(Path("own.sbatch").absolute()))
    job = cluster.run("sbatch", "--parsable", *where).stdout.strip()
    until(trains("own"))
    cluster.run("scancel", "--signal=USR1", job)
    until(lambda: all(Path(f"done.{rank}").exists() for rank in range(4)))
    assert all(0 < step < 30 for step in last_step())
    assert done_after(1)
    until(lambda: "JobState=COMPLETED" in shown(cluster, job))
