"""A learner dies in an ESPnet training, and its replacement joins the others."""

import re
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.espnet.training.side_files import load_learner
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import read
from tests.espnet.training.returning import Death, train

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

LEARNERS = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root)
    return root


@pytest.mark.parametrize("victim", range(LEARNERS - 1))
def test_a_replacement_trains_to_the_end(
    victim: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    more = ["--distopt", "adpsgd", "--scheduler", "warmuplr"]
    options = arguments(data, exp, *more, "--use_tensorboard", "true")
    death = Death(tmp_path, victim, epoch=2, step=3)
    codes = train([*options, "--max_epoch", "3"], LEARNERS, log, death)
    assert codes == [0] * LEARNERS, read(log)

    lead, everybody = 1 if victim == 0 else 0, read(log)
    said = Path(f"{log}.{lead}").read_text()
    assert f"learner {victim} has joined again (restart 1)" in said
    assert said.count("learner 1 writes log and checkpoints") == (victim == 0)
    assert "learner 0 writes log and checkpoints" not in everybody
    assert said.count("3epoch results: [train]") == 1
    assert everybody.count("3epoch results: [train]") == 1
    assert re.search(r"epoch 2: learners that have died had begun [1-9] of 18", said)
    assert "epoch 3: learners that have died" not in said

    run = Experiment.read(exp, whole=True)
    assert run is not None
    assert [(c.rank, c.joins) for c in run.changes] == [(victim, False), (victim, True)]
    again = run.learners[victim].since_start
    assert (again[0].event, again[0].epoch) == ("resume", 2)
    for epoch in 2, 3:
        assert sum(line.batches for line in again if line.epoch == epoch) > 0
    status.main([str(exp)])
    shown = capsys.readouterr().out
    assert f"learner {victim} lost" in shown and f"learner {victim} joined" in shown
    assert "finished" in shown

    checkpoint = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert checkpoint["reporter"]["epoch"] == 3
    for epoch in 1, 2, 3:
        assert {"train", "valid"} <= checkpoint["reporter"]["stats"][epoch].keys()
    states = [load_learner(exp, rank, epoch=3) for rank in range(LEARNERS)]
    for same in "saves", "scheduler":
        assert len({str(state and state[same]) for state in states}) == 1, states

    from espnet2.tasks.asr import ASRTask

    ASRTask.build_model_from_file(exp / "config.yaml", exp / "3epoch.pth")

    log = tmp_path / "again"
    codes = train([*options, "--max_epoch", "4"], LEARNERS, log)
    assert codes == [0] * LEARNERS, read(log)
    assert "goes on from its own state after epoch 3" in read(log)
    assert "has no state of its own" not in read(log)
    assert (exp / "4epoch.pth").exists()
