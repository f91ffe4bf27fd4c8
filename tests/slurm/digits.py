"""The fsdd recipe in a directory of its own, with few data and a small model."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECIPE = ROOT / "egs" / "fsdd" / "asr1"

TRAIN = """\
frontend_conf: {fs: 8000, n_fft: 256, hop_length: 160, n_mels: 20}
encoder: rnn
encoder_conf: {num_layers: 1, hidden_size: 12, output_size: 12, use_projection: false}
model_conf: {ctc_weight: 1.0}
batch_type: sorted
batch_size: 4
max_epoch: 2
optim: adam
optim_conf: {lr: 0.01}
num_workers: 0
best_model_criterion: [[valid, loss, min]]
keep_nbest_models: 2
num_att_plot: 0
use_matplotlib: false
use_tensorboard: false
"""
SLURM = """\
partition: low
train: {cpus_per_task: 2}
"""
TWO_LEARNERS = ("--distopt", "allreduce", "--nlearners", "2")
# Imported by ESPnet, for many seconds, and not needed.
EMPTY_MODULES = ("g2p_en",)


class Digits:
    """The recipe, and how to start it: on two nodes, unless told otherwise."""

    def __init__(self, root: Path, slurm_conf: str) -> None:
        self.directory = root / "egs" / "fsdd" / "asr1"
        self.directory.mkdir(parents=True)
        for name in ("local", "espnet_distopt"):
            (root / name).symlink_to(ROOT / name)
        for name in EMPTY_MODULES:
            (root / f"{name}.py").touch()
        for name in ("run.sh", "cmd.sh", "path.sh"):
            shutil.copy(RECIPE / name, self.directory)
        (self.directory / "conf").mkdir()
        shutil.copy(RECIPE / "conf" / "decode.yaml", self.directory / "conf")
        (self.directory / "conf" / "train.yaml").write_text(TRAIN)
        (self.directory / "conf" / "slurm.yaml").write_text(SLURM)
        data = self.directory / "local" / "data.sh"
        data.parent.mkdir()
        few = HERE / "few_digits.py"
        data.write_text(f'#!/bin/sh\n. ./path.sh\nexec "$python" {few}\n')
        data.chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": slurm_conf,
            "PYTHON": sys.executable,
            "cmd_backend": "slurm",
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["./run.sh", "--halves", "", *TWO_LEARNERS, *options],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_at_training(self, expdir: str, *options: str) -> subprocess.Popen[str]:
        """Start from stage 11, in an experiment directory of its own."""
        exp = self.directory / expdir
        if not exp.exists():
            stats = self.directory / "exp" / "stats_word"
            shutil.copytree(stats, exp / "stats_word")
        return self.start("--expdir", expdir, "--stage", "11", *options)

    def train(self, expdir: str, *options: str) -> subprocess.Popen[str]:
        """Start a training alone."""
        return self.start_at_training(expdir, "--stop_stage", "11", *options)

    def experiment(self, expdir: str) -> Path:
        return self.directory / expdir / "asr_allreduce_2"

    def events(self, expdir: str) -> list[dict[str, Any]]:
        """What the learners have written of themselves so far."""
        files = sorted(self.experiment(expdir).glob("distopt/learner?.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def trains(self, expdir: str, process: int) -> bool:
        """Whether both learners have begun their first, second, ... process."""
        begun = [e for e in self.events(expdir) if e["event"] in ("begin", "resume")]
        return len(begun) == 2 * process


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a process, at its end."""
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def until(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something holds, while a process runs."""
    deadline = time.monotonic() + 250
    while not what():
        assert process.poll() is None, finished(process)
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
