"""Lightning saves a checkpoint when an error ends a fit of several learners."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def launch(
    folder: Path, algorithm: str, rank: int, how: str
) -> subprocess.CompletedProcess[str]:
    words = [str(folder), algorithm, str(rank), how]
    return subprocess.run(
        [
            *[sys.executable, "-m", "espnet_distopt.bin.launch", "--nproc", "2"],
            *["-m", "tests.lightning.failing", *words],
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "algorithm",
    ["adpsgd", "local_sgd", pytest.param("allreduce", marks=pytest.mark.thorough)],
)
def test_learner_0_saves_its_model_and_waits_for_nobody(
    tmp_path: Path, algorithm: str
) -> None:
    ended = launch(tmp_path, algorithm, 0, "raises")
    assert ended.returncode != 0
    assert "ValueError: a bad batch" in ended.stderr
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=False)
    assert saved["global_step"] > 0
    assert all(t.isfinite().all() for t in saved["state_dict"].values())


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_model_that_may_be_half_averaged_is_not_saved(
    tmp_path: Path, how: str
) -> None:
    ended = launch(tmp_path, "local_sgd", 1, how)
    assert ended.returncode != 0
    assert "PeerLostError" in ended.stderr
    assert "on_exception.ckpt is not saved: the model may hold half" in ended.stderr
    assert not (tmp_path / "on_exception.ckpt").exists()
