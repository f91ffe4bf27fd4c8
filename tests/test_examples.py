"""The examples run with two learners, as their first lines say."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.processes


def launch(*words: str | Path) -> list[tuple[int, int, int, float]]:
    """Run an example with two learners; return epoch, learner, batches, loss."""
    command = [sys.executable, "-m", "espnet_distopt.bin.launch", "--nproc", "2"]
    done = subprocess.run(
        [*command, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = r"epoch (\d+) learner (\d): (\d+) batches, loss ([\d.]+)"
    found = re.findall(line, done.stdout)
    return sorted((int(e), int(n), int(b), float(loss)) for e, n, b, loss in found)


def test_a_run_goes_on_where_it_has_ended(tmp_path: Path) -> None:
    words = [EXAMPLES / "train.py", "--out", tmp_path, "--epochs"]
    first = launch(*words, "2")
    assert [(epoch, learner) for epoch, learner, _, _ in first] == [
        *((0, 0), (0, 1)),
        *((1, 0), (1, 1)),
    ]
    # A save is missing, as if a kill had come before it.
    (tmp_path / "epoch2.adpsgd.learner1of2.pt").unlink()
    second = launch(*words, "3")
    assert [epoch for epoch, _, _, _ in second] == [1, 1, 2, 2]
    for epoch in range(3):
        taken = [b for e, _, b, _ in first + second if e == epoch]
        assert sum(taken) == (128 if epoch == 1 else 64)
    # Both validate one model, and it gets better from run to run.
    assert second[-1][3] == second[-2][3]
    assert max(second[0][3], second[-1][3]) < first[0][3] / 2  # It did not begin anew.
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["0.weight"].shape == (32, 20)


def test_a_loop_of_accelerate(tmp_path: Path) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("accelerate")
    words = ["--out", tmp_path, "--epochs", "2", "--precision", "bf16"]
    found = launch(EXAMPLES / "accelerate_loop.py", *words)
    taken = {(epoch, learner): batches for epoch, learner, batches, _ in found}
    for epoch in range(2):
        assert taken[epoch, 0] + taken[epoch, 1] == 64
        assert taken[epoch, 1] < taken[epoch, 0]
    losses = [loss for *_, loss in found]
    assert losses[0] == losses[1] > losses[2] == losses[3]
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["0.weight"].shape == (32, 20)


def test_lightning_starts_its_learners_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = []
    for more in (["--epochs", "1"], ["--epochs", "2", "--again"]):
        program = [EXAMPLES / "lightning_digits.py", "--out", tmp_path, *more]
        done = subprocess.run(
            [sys.executable, *program],
            env={k: v for k, v in os.environ.items() if k != "FSDD"}
            | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        line = r"epoch (\d+) learner (\d): (\d+) batches, error ([\d.]+)"
        found += re.findall(line, done.stdout)
    assert sorted((epoch, learner) for epoch, learner, _, _ in found) == [
        *(("0", "0"), ("0", "1")),
        *(("1", "0"), ("1", "1")),
    ]
    for epoch in "01":
        assert sum(int(taken) for e, _, taken, _ in found if e == epoch) == 32
        assert len({error for e, _, _, error in found if e == epoch}) == 1


def test_the_yaml_for_espnet3_makes_a_strategy() -> None:
    pytest.importorskip("lightning")
    written = yaml.safe_load((EXAMPLES / "espnet3.yaml").read_text())
    options = written["trainer"]["strategy"]
    module, _, name = options.pop("_target_").rpartition(".")
    made = getattr(importlib.import_module(module), name)(**options)
    assert made.algorithm == "adpsgd"
