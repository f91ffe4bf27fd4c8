"""A learner of a fit is killed within an epoch; the run ends, and goes on."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lightning.killed import KILLED, SURVIVED

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def launch(
    folder: Path, way: str, learners: int = 2
) -> subprocess.CompletedProcess[str]:
    (folder / way).mkdir(exist_ok=True)
    words = ["--nproc", str(learners), "-m", "tests.lightning.killed", str(folder), way]
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
        assert "PeerLostError" in ended[name].stderr
        assert f"learner {dead}" in ended[name].stderr
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
    assert seen == Counter({n: 2 for n in range(60)})
    assert gone_on[0]["adpsgd"][0] == gone_on[1]["adpsgd"][0]


def samples(folder: Path, what: str, epoch: int) -> Counter[int]:
    """Return how often each sample was used in an epoch by learners 0, 1 and 2."""
    used: Counter[int] = Counter()
    for path in folder.glob(f"{what}.{epoch}.*"):
        used.update(map(int, path.read_text().split()))
    return used


def test_learners_of_adpsgd_go_on_without_another(folder: Path) -> None:
    done = launch(folder, SURVIVED, learners=3)
    place = folder / SURVIVED
    assert not (place / "1.json").exists()
    first, second = (json.loads((place / f"{n}.json").read_text()) for n in (0, 2))
    assert first == second, done.stderr
    assert first["model"] == first["kept"]
    assert len(first["losses"]) == 3
    # Others have trained on the batches of the dead learner, but for the one it was
    # killed in and the next, which Lightning reads ahead; in the next epoch, on all.
    lost = set(range(60)) - samples(place, "trained", 1).keys()
    assert len(lost) == 8
    assert max(samples(place, "trained", 1).values()) == 1
    assert samples(place, "trained", 2).keys() == set(range(60))
    # And all samples are validated, already at the end of the epoch of the death.
    for epoch in range(3):
        assert samples(place, "validated", epoch).keys() == set(range(12))
    assert first["rate"] == pytest.approx(0.001)
