"""Learners die in mid-epoch, and the others end the training, through ESPnet's loop."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.espnet.training import epoch
from espnet_distopt.espnet.training.saving import load_learner
from tests.espnet.toy import arguments
from tests.espnet.training.learners import before, kill_at_step, trained

pytestmark = pytest.mark.processes

LEARNERS = 3


def resumed(data: Path, exp: Path, size: int, last: int, *more: str) -> str:
    """Go on with `size` learners until epoch `last`; return what they have logged."""
    folder = exp.parent / f"until {last}"
    folder.mkdir()
    options = arguments(data, exp, *more, "--max_epoch", str(last))
    said = trained(options, size, folder)
    assert (exp / f"{last}epoch.pth").exists()
    return said


@pytest.mark.parametrize("victim", range(LEARNERS - 1))
def test_the_others_train_on_when_a_learner_is_killed(
    victim: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = tmp_path / "exp"
    adpsgd = ["--distopt", "adpsgd", "--use_tensorboard", "true"]
    options = arguments(data, exp, *adpsgd, "--max_epoch", "3")
    ends = [-9 if rank == victim else 0 for rank in range(LEARNERS)]
    trained(options, LEARNERS, tmp_path, kill_at_step(9, victim), ends)

    assert (exp / "2epoch.pth").exists() and (exp / "3epoch.pth").exists()
    checkpoint = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert checkpoint["reporter"]["epoch"] == 3
    lead = min({*range(LEARNERS)} - {victim})
    said = (tmp_path / f"log.{lead}").read_text()
    assert said.count(f"learner {victim} has died") == 1
    assert said.count(f"learner {lead} writes log and checkpoints") == (victim == 0)
    assert re.search(r"that have died had begun [1-9] of 18 batches", said)
    assert "had taken 0" not in said
    assert said.count("3epoch results: [train]") == 1
    assert "epoch 3/3" in said
    for rank in range(LEARNERS):
        assert (load_learner(exp, rank, epoch=3) is None) == (rank == victim)
    assert epochs_in_tensorboard(exp) == [1, 2, 3]

    status.main([str(exp)])
    shown = capsys.readouterr().out
    assert f"learner {victim} lost" in shown and "finished" in shown

    from espnet2.tasks.asr import ASRTask

    ASRTask.build_model_from_file(exp / "config.yaml", exp / "3epoch.pth")

    again = resumed(data, exp, LEARNERS, 4, *adpsgd)
    assert again.count("goes on from its own state after epoch 3") == (victim > 0)
    assert f"of their own after epoch 3 with adpsgd: {victim}; they go" in again
    resumed(data, exp, 2, 5, *adpsgd)


def epochs_in_tensorboard(exp: Path) -> list[int]:
    """Return the epochs that anybody has written to TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for path in (exp / "tensorboard" / "train").iterdir():
        events = EventAccumulator(str(path)).Reload()
        if "iter_epoch" in events.Tags()["scalars"]:
            found += [int(event.value) for event in events.Scalars("iter_epoch")]
    return sorted(found)


def test_validation_is_repeated_when_a_learner_dies_in_it(
    data: Path, tmp_path: Path
) -> None:
    options = arguments(data, tmp_path / "exp", "--distopt", "adpsgd")
    trained(options, LEARNERS, tmp_path, kill_one_in_validation, [0, -9, 0])
    said = (tmp_path / "log.0").read_text()
    assert said.count("a learner has died; validation is repeated") == 1
    assert "2epoch results: [train]" in said


def kill_one_in_validation(rank: int) -> None:
    """Send SIGKILL to learner 1 in its first validation; an injection."""
    if rank == 1:
        before(epoch, "_share", lambda *_: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("algorithm", ["local_sgd", "bmuf_adam"])
def test_blocks_go_on_without_a_dead_learner_and_resume_with_all(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    block = ["--distopt", algorithm, "--distopt_conf", "period=2"]
    options = arguments(data, exp, *block, "--max_epoch", "3")
    trained(options, LEARNERS, tmp_path, kill_at_step(9, 1), [0, -9, 0])
    said = (tmp_path / "log.0").read_text()
    assert "nobody trains on the rest of its share of this epoch" in said
    assert "epoch 2/3  lost: learner 1; 2 of 3 left" in said
    summary = json.loads((exp / "distopt" / "summary.json").read_text())
    samples = [epoch["samples"] for epoch in summary["per_epoch"].values()]
    assert samples[1] < samples[0] == samples[2]  # The others divide the third.
    said = resumed(data, exp, LEARNERS, 4, *block)
    assert f"of their own after epoch 3 with {algorithm}: 1; they go on from" in said
    assert "ERROR" not in said
    resumed(data, exp, 2, 5, *block)


def test_allreduce_ends_with_the_name_of_the_lost_and_resumes_with_fewer(
    data: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    allreduce = ["--distopt", "allreduce"]
    options = arguments(data, exp, *allreduce)
    said = trained(options, 4, tmp_path, kill_at_step(9, 1), [1, -9, 1, 1])
    assert "PeerLostError: learner 0: " in said
    assert "learner 1 has died" in said
    said = resumed(data, exp, 3, 2, *allreduce)
    assert "goes on from its own state after epoch 1" in said
    said = resumed(data, exp, 2, 3, "--distopt", "adpsgd")
    assert "goes on by adpsgd with 2 learners, after allreduce with 3 learners" in said
    assert "after epoch 2 with adpsgd: 0, 1; they go on from the consensus" in said
    assert "ERROR" not in said
