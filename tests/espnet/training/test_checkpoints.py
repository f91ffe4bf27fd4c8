"""What a kill can leave behind, and how a resumed run copes."""

import pickle
import secrets
import traceback
from pathlib import Path

import pytest
import torch

from espnet_distopt.espnet.training import checkpoints


def test_a_save_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "state.pth"
    checkpoints.atomic_save({"x": torch.ones(3)}, path)
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        checkpoints.atomic_save({"x": lambda: None}, path)
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(3))


def test_a_full_disk_is_named_and_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pth"
    checkpoints.atomic_save({"x": torch.ones(3)}, path)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "abc")
    new = tmp_path / ".state.pth.abc.part"
    new.symlink_to("/dev/full")  # Every write to it fails.
    with pytest.raises(
        OSError, match=r"No space left on device.*state\.pth"
    ) as failure:
        checkpoints.atomic_save({"x": torch.zeros(100_000)}, path)
    shown = "".join(traceback.format_exception(failure.value))
    assert shown.count("Traceback") == 1  # Recipes show the first error of a log.
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


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
