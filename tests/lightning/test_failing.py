"""A learner fails or is killed within an epoch: what is saved, and how it goes on."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lightning.failing import KILLED
from tests.lightning.toy import Found

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Ended = subprocess.CompletedProcess[str]

NOT_SAVED = "on_exception.ckpt is not saved: the model may hold half"


def launch(folder: Path, *words: str) -> Ended:
    folder.mkdir(exist_ok=True)
    words = ("--nproc", "2", "-m", "tests.lightning.failing", str(folder), *words)
    return subprocess.run(
        [sys.executable, "-m", "espnet_distopt.bin.launch", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize(
    "algorithm",
    ["adpsgd", "local_sgd", pytest.param("allreduce", marks=pytest.mark.thorough)],
)
def test_learner_0_saves_its_model_and_waits_for_nobody(
    tmp_path: Path, algorithm: str
) -> None:
    ended = launch(tmp_path, algorithm, "0", "raises")
    assert ended.returncode != 0
    assert "ValueError: a bad batch" in ended.stderr
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=False)
    assert saved["global_step"] > 0
    assert all(t.isfinite().all() for t in saved["state_dict"].values())


def test_a_model_that_may_be_half_averaged_is_not_saved(tmp_path: Path) -> None:
    ended = launch(tmp_path, "local_sgd", "1", "raises")
    assert ended.returncode != 0
    assert "PeerLostError" in ended.stderr and NOT_SAVED in ended.stderr
    assert not (tmp_path / "on_exception.ckpt").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Ended]:
    return {
        name: launch(folder / name, name, str(dead), "dies")
        for name, dead in KILLED.items()
    }


@pytest.fixture(scope="module")
def gone_on(folder: Path, ended: Any) -> Found:
    done = launch(folder, "again")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_the_others_end_with_a_word_on_how_to_go_on(
    ended: dict[str, Ended], folder: Path
) -> None:
    for name, dead in KILLED.items():
        assert ended[name].returncode != 0
        assert re.search(rf"the fit ends: .*learner {dead}", ended[name].stderr)
        assert (NOT_SAVED in ended[name].stderr) == (dead > 0)  # Learner 0 says so.
        assert not (folder / name / "on_exception.ckpt").exists()
    said = (
        "Lightning cannot train on without learner 0, which logs and saves: "
        "fit(ckpt_path=...) goes on"
    )
    assert said in ended["adpsgd"].stderr


def test_learners_that_step_together_go_on_exactly(gone_on: Found) -> None:
    for learner in gone_on:
        model, seen = learner["bmuf_adam"]
        whole, all_seen = learner["whole"]
        assert model == whole
        assert seen == all_seen[len(all_seen) // 3 :]


def test_learners_that_step_alone_repeat_the_epoch(gone_on: Found) -> None:
    seen = Counter(n for learner in gone_on for n in learner["adpsgd"][1])
    assert seen == Counter({n: 2 for n in range(64)})
    assert gone_on[0]["adpsgd"][0] == gone_on[1]["adpsgd"][0]
