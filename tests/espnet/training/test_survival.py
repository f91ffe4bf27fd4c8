"""Learners die in mid-epoch, and the others end the training, through ESPnet's loop."""

import re
from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import status
from espnet_distopt.espnet.training.saving import load_learner
from tests.espnet.toy import arguments
from tests.espnet.training.learners import kill_at_step, read, train

pytestmark = pytest.mark.processes

LEARNERS = 3


def resumed(data: Path, exp: Path, size: int, last: int, *more: str) -> str:
    """Go on with `size` learners until epoch `last`; return what they have logged."""
    log = exp.parent / f"log{last}"
    options = arguments(data, exp, *more, "--max_epoch", str(last))
    codes = train(options, size, exp.parent / f"meet{last}", log)
    assert codes == [0] * size, read(log)
    assert (exp / f"{last}epoch.pth").exists()
    return read(log)


@pytest.mark.parametrize("victim", range(LEARNERS - 1))
def test_the_others_train_on_when_a_learner_is_killed(
    victim: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    adpsgd = ["--distopt", "adpsgd", "--use_tensorboard", "true"]
    options = arguments(data, exp, *adpsgd, "--max_epoch", "3")
    injection = kill_at_step(9, victim)
    codes = train(options, LEARNERS, tmp_path / "meet", log, injection)
    assert codes == [-9 if rank == victim else 0 for rank in range(LEARNERS)], read(log)

    assert (exp / "2epoch.pth").exists() and (exp / "3epoch.pth").exists()
    checkpoint = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert checkpoint["reporter"]["epoch"] == 3
    lead = min({*range(LEARNERS)} - {victim})
    said = Path(f"{log}.{lead}").read_text()
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
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(data, exp, "--distopt", "adpsgd", "--max_epoch", "2")
    injection = KillInValidation(epoch=1, victim=1)
    codes = train(options, LEARNERS, tmp_path / "meet", log, injection)
    assert codes == [0, -9, 0], read(log)
    said = Path(f"{log}.0").read_text()
    assert said.count("a learner has died; validation is repeated") == 1
    assert "2epoch results: [train]" in said


class KillInValidation:
    """An injection: SIGKILL to a learner, in an epoch's validation."""

    def __init__(self, epoch: int, victim: int) -> None:
        self.epoch, self.victim = epoch, victim

    def __call__(self, rank: int) -> None:
        import os
        import signal

        from espnet_distopt.espnet.training import epoch

        share = epoch._share

        def killing(iterator: object, *args: object) -> object:
            if rank == self.victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return share(iterator, *args)  # type: ignore[arg-type]

        epoch._share = killing  # type: ignore[assignment]


@pytest.mark.parametrize("algorithm", ["local_sgd", "bmuf_adam"])
def test_blocks_go_on_without_a_dead_learner_and_resume_with_all(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    block = ["--distopt", algorithm, "--distopt_conf", "period=2"]
    options = arguments(data, exp, *block)
    codes = train(options, LEARNERS, tmp_path / "meet", log, kill_at_step(9, 1))
    assert codes == [0, -9, 0], read(log)
    said = resumed(data, exp, LEARNERS, 3, *block)
    assert f"of their own after epoch 2 with {algorithm}: 1; they go on from" in said
    assert "ERROR" not in said
    resumed(data, exp, 2, 4, *block)


def test_allreduce_ends_with_the_name_of_the_lost_and_resumes_with_fewer(
    data: Path, tmp_path: Path
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    allreduce = ["--distopt", "allreduce"]
    options = arguments(data, exp, *allreduce)
    codes = train(options, 4, tmp_path / "meet", log, kill_at_step(9, 1))
    assert codes == [1, -9, 1, 1], read(log)
    assert "PeerLostError: learner 0: " in read(log)
    assert "learner 1 has died" in read(log)
    said = resumed(data, exp, 3, 2, *allreduce)
    assert "goes on from its own state after epoch 1" in said
    said = resumed(data, exp, 2, 3, "--distopt", "adpsgd")
    assert "goes on by adpsgd with 2 learners, after allreduce with 3 learners" in said
    assert "after epoch 2 with adpsgd: 0, 1; they go on from the consensus" in said
    assert "ERROR" not in said
