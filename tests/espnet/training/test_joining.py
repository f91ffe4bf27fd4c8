"""A learner dies in an ESPnet training, and its replacement joins the others."""

import argparse
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.core.driver import JoinLater
from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.run import Handover
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.espnet.training.tasks import check_replacement
from espnet_distopt.espnet.training.trainer import _warn_of_wandb
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments
from tests.espnet.training.returning import Death, trained

pytestmark = pytest.mark.timeout(900)

LEARNERS = 3


@pytest.mark.processes
@pytest.mark.parametrize("victim", range(LEARNERS - 1))
def test_a_replacement_trains_to_the_end(
    victim: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    more = ["--distopt", "adpsgd", "--scheduler", "warmuplr"]
    options = arguments(data, exp, *more, "--use_tensorboard", "true")
    death = Death(tmp_path, victim, epoch=2, when=3, stay=2)
    everybody = trained([*options, "--max_epoch", "3"], LEARNERS, log, death)

    lead = 1 if victim == 0 else 0
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
    since = run.learners[victim].since_start
    assert (since[0].event, since[0].epoch) == ("resume", 2)
    for epoch in 2, 3:
        assert sum(line.batches for line in since if line.epoch == epoch) > 0
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

    again = trained([*options, "--max_epoch", "4"], LEARNERS, tmp_path / "again")
    assert "goes on from its own state after epoch 3" in again
    assert not (exp / "distopt" / "learner0.2epoch.pth").exists()
    assert "without a state of their own" not in again
    assert (exp / "4epoch.pth").exists()


@pytest.mark.processes
@pytest.mark.parametrize(("when", "joins"), [("gossip", 2), ("validation", 3)])
def test_one_that_dies_between_two_epochs_begins_with_a_whole_reporter(
    when: str, joins: int, data: Path, tmp_path: Path
) -> None:
    """After its validation learner 0 writes the checkpoint, without which none joins.

    So nobody joins epoch 2 if it dies there: the checkpoint of epoch 1 is missing.
    """
    exp = tmp_path / "exp"
    options = arguments(data, exp, "--distopt", "adpsgd", "--max_epoch", "4")
    death = Death(tmp_path, 0, epoch=1, when=when, stay=joins)
    said = trained(options, LEARNERS, tmp_path / "log", death)
    assert (tmp_path / "0.joined").read_text() == str(joins)
    assert "The stats of the previous epoch" not in said
    checkpoint = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert checkpoint["reporter"]["stats"].keys() == {1, 2, 3, 4}


@pytest.mark.processes
def test_one_that_comes_too_late_ends_with_one_line(data: Path, tmp_path: Path) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(data, exp, "--distopt", "adpsgd")
    death = Death(tmp_path, 1, epoch=2, when=2, stay=None)
    trained(options, LEARNERS, log, death, ends=[0, 2, 0])
    said = Path(f"{log}.1").read_text()
    assert said.rstrip().endswith(
        "error: learner 1: joining has failed: the others have ended their training, "
        "and nobody is left to join"
    )
    assert "Traceback" not in said
    assert (exp / "2epoch.pth").exists()


@pytest.mark.parametrize("algorithm", [None, "bmuf_adam", "allreduce"])
def test_nobody_returns_to_a_training_that_waits_for_all(
    algorithm: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INCARNATION, "1")
    monkeypatch.setenv("RANK", "2")
    args = argparse.Namespace(distopt=algorithm, collect_stats=False, use_wandb=True)
    with pytest.raises(InputError) as refused:
        check_replacement(args)
    assert str(refused.value).startswith(
        f"learner 2 cannot return to a training that runs with distopt: "
        f"{algorithm or 'none'} (with adpsgd it can)"
    )
    args.distopt = "adpsgd"
    check_replacement(args)
    assert not args.use_wandb  # Learner 0's run goes on, or has ended with it.


@pytest.mark.parametrize(
    ("algorithm", "uses", "warns"),
    [("adpsgd", True, True), ("adpsgd", False, False), ("allreduce", True, False)],
)
def test_wandb_is_not_handed_over(
    algorithm: str, uses: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = SimpleNamespace(distopt=algorithm, use_wandb=uses)
    run: Any = SimpleNamespace(options=options)
    _warn_of_wandb(run)
    assert ("go on without wandb" in caplog.text) == warns


def test_a_replacement_waits_for_the_checkpoint_of_the_epoch_before(
    tmp_path: Path,
) -> None:
    handover, path = Handover(tmp_path), tmp_path / "checkpoint.pth"
    handover.load_state_dict({"epoch": 1})
    with pytest.raises(JoinLater):
        handover.load_state_dict({"epoch": 2})
    reporter = {"epoch": 1, "stats": {}}
    torch.save({"reporter": reporter, "model": torch.ones(10000)}, path)
    handover.load_state_dict({"epoch": 2})
    with pytest.raises(JoinLater):
        handover.load_state_dict({"epoch": 3})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])  # ESPnet is writing it.
    with pytest.raises(JoinLater):
        handover.load_state_dict({"epoch": 2})
    assert handover.taken == {"epoch": 2}
