"""The tasks of a step are the learners of a training, and come seconds apart."""

import sys
from pathlib import Path

from slurm.daemons import MiniSlurm
from slurm.test_jobs import ROOT, until

from tests.espnet.toy import arguments, write_toy_data

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=2 --output=log
export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 PYTHONPATH={root}
export TORCH_GLOO_LAZY_INIT=1 DELAYS='1 options before 3,0 config before 2'
srun {python} -m tests.espnet.training.starts {options} && touch well || touch failed
"""


def test_the_tasks_of_a_step_come_seconds_apart(
    cluster: MiniSlurm, tmp_path: Path
) -> None:
    here, data = Path.cwd(), tmp_path / "data"
    data.mkdir()
    write_toy_data(data, 8, 8)
    options = arguments(data, here / "exp", "--distopt", "bmuf")
    quoted = " ".join(f"'{each}'" for each in options)
    names = {"root": f"'{ROOT}'", "python": sys.executable, "options": quoted}
    Path("starts.sbatch").write_text(SCRIPT.format(**names))
    cluster.run("sbatch", "--chdir", str(here), str(here / "starts.sbatch"))
    until(lambda: Path("well").exists() or Path("failed").exists())
    assert Path("well").exists(), Path("log").read_text()
    assert Path("exp/2epoch.pth").exists()
