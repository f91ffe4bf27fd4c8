"""A run that is started again, with the same options or with others."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from espnet2.train.reporter import Reporter

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.saving import TrainingState, load_learner
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.session import Session
from tests.espnet.toy import arguments
from tests.espnet.training.learners import SignalAt, assert_same, trained


def one_learner(data: Path, output: Path, *more: str) -> None:
    DistoptASRTask.main(cmd=arguments(data, output, "--distopt", "bmuf", *more))


def test_a_stop_in_the_first_epoch_leaves_no_earlier_training_to_resume(
    data: Path, tmp_path: Path
) -> None:
    again, new = tmp_path / "again", tmp_path / "new"
    one_learner(data, again, "--max_epoch", "1")
    anew = ["--distopt", "allreduce", "--seed", "1", "--max_epoch", "1", "--resume"]
    options = arguments(data, again, *anew)
    stop = SignalAt(1, None, signal.SIGUSR1)
    trained([*options, "false"], 1, tmp_path, stop, ends=75)
    assert not (again / "checkpoint.pth").exists()
    assert (again / "checkpoint.old.pth").exists()
    assert "goes on after step" in trained([*options, "true"], 1, tmp_path)
    DistoptASRTask.main(cmd=arguments(data, new, *anew, "true"))
    assert_same(again / "1epoch.pth", new / "1epoch.pth")


SCHEDULERS = {
    "cycliclr": ["base_lr=0.001", "max_lr=0.01", "cycle_momentum=false"],
    # The loss falls, which `max` takes for a plateau from the first epoch on.
    "warmupreducelronplateau": ["warmup_steps=2", "mode=max", "patience=0"],
    "reducelronplateau": ["mode=max", "patience=0"],
    "onecyclelr": ["max_lr=0.01", "total_steps=60"],
    "steplr": ["step_size=1"],
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_learning_rate_goes_on_as_without_an_end(
    scheduler: str, data: Path, tmp_path: Path
) -> None:
    options = ["--scheduler", scheduler]
    for each in SCHEDULERS[scheduler]:
        options += ["--scheduler_conf", each]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    one_learner(data, whole, *options, "--max_epoch", "3")
    for epochs in "123":
        one_learner(data, resumed, *options, "--max_epoch", epochs)
    rates = []
    for output in (whole, resumed):
        saved = torch.load(output / "checkpoint.pth", weights_only=False)
        rates.append(saved["optimizers"][0]["param_groups"][0]["lr"])
    assert rates[0] == rates[1]
    assert_same(whole / "3epoch.pth", resumed / "3epoch.pth")


def test_another_optimizer_is_refused(data: Path, tmp_path: Path) -> None:
    one_learner(data, tmp_path, "--max_epoch", "1")
    with pytest.raises(InputError, match="another optimizer than SGD, without 'damp"):
        one_learner(data, tmp_path, "--optim", "sgd")
    one_learner(data, tmp_path, "--optim", "adamw")


def test_a_stop_after_learners_were_added_repeats_nothing(
    data: Path, tmp_path: Path
) -> None:
    options = arguments(data, tmp_path / "exp", "--distopt", "allreduce")
    trained([*options, "--max_epoch", "1"], 2, tmp_path)
    trained(options, 3, tmp_path, SignalAt(8, 0, signal.SIGUSR1), ends=75)
    said = trained(options, 3, tmp_path)
    assert "goes on after step" in said
    assert "no common state" not in said


HADPSGD = ["--distopt", "hadpsgd", "--distopt_conf"]


@pytest.fixture(scope="module")
def nodes_of_two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nodes")
    options = arguments(data, root / "exp", *HADPSGD, "per_node=2", "--max_epoch", "1")
    trained(options, 4, root)
    return root / "exp"


@pytest.mark.parametrize(("per_node", "lost"), [(2, 3), (4, None)])
def test_learners_of_a_node_go_on_alike(
    per_node: int, lost: int | None, data: Path, nodes_of_two: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    shutil.copytree(nodes_of_two, exp, symlinks=True)
    if lost is not None:
        (exp / "distopt" / f"learner{lost}.1epoch.pth").unlink()
    trained(arguments(data, exp, *HADPSGD, f"per_node={per_node}"), 4, tmp_path)
    states = [load_learner(exp, rank, 2) for rank in range(4)]
    params = [state["session"]["learner"]["params"] for state in states if state]
    assert torch.equal(params[0], params[1])
    assert torch.equal(params[2], params[3])
    assert per_node == 2 or torch.equal(params[0], params[2])


def test_mixed_precision_may_be_switched_on_within_an_epoch() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    reporter = Reporter()
    reporter.set_epoch(1)
    with (
        Session(model, optimizer, "bmuf") as session,
        reporter.observe("train") as figures,
    ):
        parts = session, model, figures, optimizer, None
        position = {"step": 3, "spent": None}
        state = TrainingState(*parts, None).capture(batches=3)
        TrainingState(*parts, scaler).restore_within({**state, **position})
        assert scaler.get_scale() == 65536.0
        state = TrainingState(*parts, scaler).capture(batches=3)
        state["scaler"]["scale"] = 8.0
        TrainingState(*parts, scaler).restore_within({**state, **position})
        assert scaler.get_scale() == 8.0


def test_a_training_that_patience_has_ended_is_not_trained_on(
    data: Path, tmp_path: Path
) -> None:
    # The loss falls, which `max` takes for no progress from the first epoch on.
    options = ["--early_stopping_criterion", "valid", "loss", "max"]
    options += ["--max_epoch", "5", "--patience"]
    for _ in range(2):
        one_learner(data, tmp_path, *options, "0")
        assert (tmp_path / "2epoch.pth").exists()
        assert not (tmp_path / "3epoch.pth").exists()
    one_learner(data, tmp_path, *options, "1")
    assert (tmp_path / "3epoch.pth").exists()
    assert not (tmp_path / "4epoch.pth").exists()
