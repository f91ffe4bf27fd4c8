"""What the README shows, runs; its table of options is complete."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.processes
def test_the_loop_in_the_readme_runs_with_two_learners(tmp_path: Path) -> None:
    code = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert code is not None
    script = tmp_path / "loop.py"
    script.write_text(code[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launch, "--nproc_per_node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    errors = [float(e) for e in re.findall(r"error ([\d.]+)", done.stdout)]
    assert len(errors) == 6
    assert max(errors[-2:]) < 0.2


def test_the_option_table_is_the_truth() -> None:
    import dataclasses

    from espnet_distopt.algorithms import ALGORITHMS

    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [
        re.findall(r"`([\w]+)`", line.split("|")[1]) for line in lines if "|" in line
    ]
    options = [re.match(r"\| `(\w+)` \| ([\w, ]+) \|", line) for line in lines]
    known = {(o[1], name) for o in options if o for name in o[2].split(", ")}
    for name, entry in ALGORITHMS.items():
        assert any(name in row for row in rows), name
        for field in dataclasses.fields(entry.config):
            assert (field.name, name) in known
            known.remove((field.name, name))
    assert not {(o, name) for o, name in known if name in ALGORITHMS}
