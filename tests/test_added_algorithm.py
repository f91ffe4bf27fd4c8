"""The algorithm that docs/how_it_works.md adds runs as the page says."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from espnet_distopt.algorithms.plugins import GROUP
from tests.algorithms.packages import install

ROOT = Path(__file__).resolve().parents[1]

TRAINING = """\
import sys

import torch
from espnet_distopt import Session

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.Linear(2, 1, bias=False)
with torch.no_grad():
    model.weight.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
with Session(model, optimizer, "clipped_mean", max_norm=0.5) as session:
    session.begin_batch(2)
    batch = torch.tensor([[[3.0, 4.0], [0.0, 0.25]][rank]])
    model(batch).sum().backward()
    optimizer.step()
    session.step()
    session.finish()
sys.stdout.write(f"weights {rank} {model.weight.tolist()[0]}\\n")
torch.distributed.destroy_process_group()
"""


def blocks(language: str) -> list[str]:
    """Return the code blocks of the section on adding an algorithm."""
    page = (ROOT / "docs" / "how_it_works.md").read_text()
    section = page.split("## To add an algorithm")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.mark.processes
def test_two_learners_train_with_the_algorithm_of_the_page(tmp_path: Path) -> None:
    (code,), (project,) = blocks("python"), blocks("toml")
    points = tomllib.loads(project)["project"]["entry-points"][GROUP]
    site = tmp_path / "site"
    site.mkdir()
    install(site, "clipped_mean", code, **points)
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launch, "--nproc_per_node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"weights (\d) \[(.*), (.*)\]", done.stdout)
    assert sorted(line[0] for line in lines) == ["0", "1"], done.stdout
    # Learner 0's gradient (3, 4) is clipped to (0.3, 0.4); learner 1's is short enough.
    for _, first, second in lines:
        assert float(first) == pytest.approx(-0.15, rel=1e-5)
        assert float(second) == pytest.approx(-(0.4 + 0.25) / 2, rel=1e-5)
