"""What a kill can leave behind, and how a resumed run copes."""

from pathlib import Path

import pytest
import torch

from espnet_distopt.bin import asr_train
from espnet_distopt.espnet.training import checkpoints
from tests.espnet.toy import arguments, write_toy_data


def test_a_checkpoint_that_is_cut_off_is_replaced_by_the_kept_one(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "checkpoint.pth"
    torch.save({"epoch": 1}, checkpoint)
    checkpoints.keep_checkpoint(tmp_path)
    torch.save({"epoch": 2}, checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-30])
    checkpoints.keep_checkpoint(tmp_path)  # must not replace the good copy
    checkpoints.recover_checkpoint(tmp_path)
    assert torch.load(checkpoint, weights_only=True) == {"epoch": 1}


def test_without_a_kept_one_training_starts_over(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pth"
    checkpoint.write_bytes(b"half a file")
    checkpoints.recover_checkpoint(tmp_path)
    assert not checkpoint.exists()


def test_a_whole_checkpoint_is_left_alone(tmp_path: Path) -> None:
    torch.save({"epoch": 5}, tmp_path / "checkpoint.pth")
    checkpoints.recover_checkpoint(tmp_path)
    assert torch.load(tmp_path / "checkpoint.pth", weights_only=True) == {"epoch": 5}


def test_parts_of_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "distopt").mkdir()
    others = [tmp_path / "1epoch.pth", tmp_path / "distopt" / ".summary.json.7.part"]
    parts = [tmp_path / ".1epoch.pth.7.part"]
    parts += [tmp_path / "distopt" / ".learner0.1epoch.pth.7.part"]
    for path in (*others, *parts):
        path.touch()
    checkpoints.remove_unfinished(tmp_path)
    assert all(path.exists() for path in others)
    assert not any(path.exists() for path in parts)


def test_a_missing_epoch_model_is_written_from_the_checkpoint(tmp_path: Path) -> None:
    checkpoints.recover_epoch_model(tmp_path, 3, {"w": torch.ones(2)})
    assert checkpoints.is_whole(tmp_path / "3epoch.pth")
    before = (tmp_path / "3epoch.pth").read_bytes()
    checkpoints.recover_epoch_model(tmp_path, 3, {"w": torch.zeros(2)})
    assert (tmp_path / "3epoch.pth").read_bytes() == before


@pytest.mark.parametrize(
    ("losses", "nbest", "keep"),
    [
        ([12.3, 0.66, 0.58], 3, 2),
        ([12.3, 0.66, 0.58], [1, 3, 10], 2),  # there are no ten epochs
        ([12.3, 0.58, 9.0], 3, 1),
        ([12.3, 0.66, 0.58], 2, None),
        ([12.3, 0.66, 0.58], 4, None),  # ESPnet takes the best one then
        ([22.0, 19.0, 17.0], 3, None),
        ([40.0, 0.05, 0.01, 0.03], 3, None),  # far above in quotient only
        ([40.0, float("nan"), 0.03], 3, 1),
    ],
)
def test_an_average_over_a_far_worse_epoch_is_told_of(
    losses: list[float], nbest: int | list[int], keep: int | None, tmp_path: Path
) -> None:
    save_figures(tmp_path, "loss", losses)
    criteria = [("train", "loss", "min"), ("valid", "loss", "min")]
    lines = checkpoints.far_averages(tmp_path, criteria, nbest)
    assert len(lines) == (keep is not None)
    if keep is not None:
        assert lines[0].startswith(f"{tmp_path}/valid.loss.ave.pth averages 3 epochs, ")
        assert lines[0].endswith(f"fewer (keep_nbest_models: {keep})")


def save_figures(folder: Path, name: str, figures: list[float]) -> None:
    """Save a checkpoint with a figure of each epoch."""
    stats = {epoch: {"valid": {name: each}} for epoch, each in enumerate(figures, 1)}
    state = {"reporter": {"stats": stats, "epoch": len(figures)}}
    torch.save(state, folder / "checkpoint.pth")


def test_an_accuracy_of_less_than_half_of_the_best_is_far_worse(tmp_path: Path) -> None:
    save_figures(tmp_path, "acc", [0.1, 0.7, 0.9])
    (line,) = checkpoints.far_averages(tmp_path, [("valid", "acc", "max")], 3)
    assert "valid acc of epoch 1 is 0.1, where the best epoch, 3, has 0.9: " in line


def test_a_training_ends_by_telling_of_a_far_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_data(tmp_path)
    more = ("--keep_nbest_models", "2")
    for times, told in ((2.0, False), (0.5, True)):
        monkeypatch.setattr(checkpoints, "_FAR", times)
        monkeypatch.setattr(checkpoints, "_OF_RANGE", -1.0)
        asr_train.main(arguments(tmp_path, tmp_path / f"exp{times}", *more))
        printed = capsys.readouterr().out.splitlines()
        found = f"exp{times}/valid.loss.ave.pth averages 2 epochs" in printed[-1]
        assert found == told
