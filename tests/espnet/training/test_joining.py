"""A learner dies in an ESPnet training, and its replacement joins the others."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.espnet.training.side_files import load_learner
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments, write_toy_data
from tests.launch.launched import STARTED, Launched

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

LEARNERS = 3
PROGRAM = str(Path(__file__).parent / "returning.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root)
    return root


@pytest.fixture(autouse=True)
def no_launcher_is_left() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate(timeout=60)


def train(directory: Path, death: str, options: list[str]) -> str:
    """Train with the launcher to a good end; return what all have logged."""
    launcher = f"--nproc {LEARNERS} --restarts 2 --label".split()
    what = " ".join([death, *options])
    launched = Launched(directory, *launcher, program=PROGRAM, what=what)
    code, out, err = launched.ended(400)
    said = "\n".join(out + err)
    assert code == 0, said
    return said


@pytest.mark.parametrize("victim", range(LEARNERS - 1))
def test_a_replacement_trains_to_the_end(
    victim: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = tmp_path / "exp"
    more = ["--distopt", "adpsgd", "--scheduler", "warmuplr"]
    options = arguments(data, exp, *more, "--use_tensorboard", "true")
    said = train(tmp_path, f"{victim}:2:3", [*options, "--max_epoch", "3"])

    lead = 1 if victim == 0 else 0
    assert f"learner {victim} has joined again (restart 1)" in said
    assert f"though not with all learners: replaced: learner {victim} (1 times)" in said
    assert said.count("learner 1 writes log and checkpoints") == (victim == 0)
    assert "learner 0 writes log and checkpoints" not in said
    assert len(re.findall(rf"^{lead}: .*3epoch results: \[train\]", said, re.M)) == 1
    assert said.count("3epoch results") == 1
    assert re.search(r"epoch 2: learners that have died had begun [1-9] of 18", said)
    assert "epoch 3: learners that have died" not in said

    run = Experiment.read(exp, whole=True)
    assert run is not None
    assert [(c.rank, c.joins) for c in run.changes] == [(victim, False), (victim, True)]
    again = run.learners[victim].since_start
    assert (again[0].event, again[0].epoch) == ("resume", 2)
    assert sum(line.batches for line in again if line.epoch == 2) > 0
    assert sum(line.batches for line in again if line.epoch == 3) > 0
    status.main([str(exp)])
    shown = capsys.readouterr().out
    assert f"learner {victim} lost" in shown and f"learner {victim} joined" in shown
    assert "finished" in shown

    checkpoint = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert checkpoint["reporter"]["epoch"] == 3
    for epoch in 1, 2, 3:
        assert {"train", "valid"} <= checkpoint["reporter"]["stats"][epoch].keys()
    states = [load_learner(exp, rank, epoch=3) for rank in range(LEARNERS)]
    assert len({state and state["saves"] for state in states}) == 1
    assert len({str(state and state["scheduler"]) for state in states}) == 1

    from espnet2.tasks.asr import ASRTask

    ASRTask.build_model_from_file(exp / "config.yaml", exp / "3epoch.pth")
    resumed = train(tmp_path, "0:0:0", [*options, "--max_epoch", "4"])
    assert "goes on from its own state after epoch 3" in resumed
    assert "has no state of its own" not in resumed
    assert (exp / "4epoch.pth").exists()
