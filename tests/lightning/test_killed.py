"""A learner of a fit is killed within an epoch; the run ends, and goes on."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lightning.killed import KILLED

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def launch(folder: Path, way: str) -> subprocess.CompletedProcess[str]:
    words = ["--nproc", "2", "-m", "tests.lightning.killed", str(folder), way]
    return subprocess.run(
        [sys.executable, "-m", "espnet_distopt.bin.launch", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    return {name: launch(folder, name) for name in KILLED}


@pytest.fixture(scope="module")
def gone_on(folder: Path, ended: Any) -> list[dict[str, Any]]:
    done = launch(folder, "again")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_the_others_end_with_a_word_on_how_to_go_on(ended: Any) -> None:
    for name, dead in KILLED.items():
        assert ended[name].returncode != 0
        assert re.search(rf"the fit ends: .*learner {dead}", ended[name].stderr)
    said = (
        "Lightning cannot train on without learner 0, which logs and saves: "
        "fit(ckpt_path=...) goes on"
    )
    assert said in ended["adpsgd"].stderr


def test_learners_that_step_together_go_on_exactly(
    gone_on: list[dict[str, Any]],
) -> None:
    for learner in gone_on:
        model, seen = learner["bmuf_adam"]
        whole, all_seen = learner["whole"]
        assert model == whole
        assert seen == all_seen[len(all_seen) // 3 :]


def test_learners_that_step_alone_repeat_the_epoch(
    gone_on: list[dict[str, Any]],
) -> None:
    seen = Counter(n for learner in gone_on for n in learner["adpsgd"][1])
    assert seen == Counter({n: 2 for n in range(64)})
    assert gone_on[0]["adpsgd"][0] == gone_on[1]["adpsgd"][0]
