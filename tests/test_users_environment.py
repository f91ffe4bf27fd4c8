"""Trainings to their ends beside the packages that users of ESPnet have.

These are transformers, peft, accelerate, datasets, wandb and others, which ESPnet,
Lightning and PyTorch import where they find them (requirements/users.txt).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from mini_an4 import OURS, Recipe

from tests.espnet.toy import arguments, write_toy_data
from tests.slurm import few_digits

ROOT = Path(__file__).resolve().parents[1]
USERS = Path(sys.prefix, "users")

pytestmark = [
    pytest.mark.users,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not USERS.is_dir(), reason="`make thorough` gets the packages"),
]

VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "PYTHON": sys.executable,
    "PYTHONPATH": f"{USERS}:{ROOT}",
}


def run(*words: str | Path, folder: Path) -> str:
    """Run a command beside the users' packages; return what it has printed."""
    stock = {name: value for name, value in os.environ.items() if name != "FSDD"}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**stock, **VARIABLES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_the_packages_are_those_that_espnet_imports(tmp_path: Path) -> None:
    code = (
        "import espnet_distopt.espnet.training.tasks, sys\n"
        "print(sys.modules['transformers'].__version__)\n"
        "import peft, datasets, accelerate, wandb\n"
        "from espnet2.asr.decoder import hugging_face_transformers_decoder as d\n"
        "print(d.is_transformers_available)"
    )
    *_, version, found = run(sys.executable, "-c", code, folder=tmp_path).split()
    assert f"transformers=={version}\n" in (ROOT / "requirements/users.txt").read_text()
    assert found == "True"


def test_espnet_with_wandb_and_tensorboard(tmp_path: Path) -> None:
    write_toy_data(tmp_path)
    out = tmp_path / "exp"
    options = arguments(tmp_path, out, "--distopt", "adpsgd")
    options += ["--use_tensorboard", "true", "--use_wandb", "true"]
    options += ["--dist_backend", "gloo", "--num_workers", "1"]
    launcher = [sys.executable, "-m", "espnet_distopt.bin.launch", "--nproc", "2"]
    task = ["-m", "espnet_distopt.bin.asr_train"]
    run(*launcher, *task, *options, folder=tmp_path)
    assert torch.load(out / "2epoch.pth", weights_only=True)
    assert list(out.rglob("events.out.tfevents.*"))
    assert list(out.rglob("run-*.wandb"))


def test_lightning(tmp_path: Path) -> None:
    program = ROOT / "examples" / "lightning_digits.py"
    words = [sys.executable, program, "--out", tmp_path, "--epochs", "2"]
    said = run(*words, folder=tmp_path)
    assert len(re.findall(r"epoch 1 learner \d: \d+ batches, error", said)) == 2


class Beside(Recipe):
    """ESPnet3's recipe beside the users' packages."""

    def _environment(self) -> Mapping[str, str]:
        found = dict(super()._environment())
        path = f"{USERS}:{found['PYTHONPATH']}"
        return {**VARIABLES, **found, "PYTHONPATH": path}


def test_espnet3(tmp_path: Path) -> None:
    made = Beside(tmp_path / "recipe", learners=2)
    strategy = {"_target_": OURS, "algorithm": "adpsgd"}
    made.configure("adpsgd", strategy, [0.0, 0.0])
    made.prepare("adpsgd", 3)
    made.train("adpsgd")
    made.score("adpsgd")
    assert "WER" in (made.folder / "exp/adpsgd/i/metrics.json").read_text()


def test_the_recipe_of_digits(tmp_path: Path) -> None:
    folder = tmp_path / "egs" / "fsdd" / "asr1"
    ignored = shutil.ignore_patterns("data", "dump", "exp", "corpus")
    shutil.copytree(ROOT / "egs/fsdd/asr1", folder, symlinks=False, ignore=ignored)
    (tmp_path / "local").symlink_to(ROOT / "local")
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    few = f'cd "$(dirname "$0")/.."; exec "$PYTHON" {few_digits.__file__}\n'
    (folder / "local" / "data.sh").write_text(f"#!/bin/sh\n{few}")
    short = ["--train_args", "--max_epoch 2", "--halves", "", "--nj", "1"]
    run("bash", "run.sh", *short, folder=folder)
    assert "| adpsgd " in (folder / "exp" / "RESULTS.md").read_text()
