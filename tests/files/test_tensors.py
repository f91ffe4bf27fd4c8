"""Saves of tensors that are whole or not there."""

import pickle
import secrets
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from espnet_distopt.files.tensors import atomic_save, plain


def test_a_save_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "state.pth"
    atomic_save({"x": torch.ones(3)}, path)
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        atomic_save({"x": lambda: None}, path)
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(3))


def test_a_full_disk_is_named_and_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pth"
    atomic_save({"x": torch.ones(3)}, path)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "abc")
    new = tmp_path / ".state.pth.abc.part"
    new.symlink_to("/dev/full")  # Every write to it fails.
    with pytest.raises(
        OSError, match=r"No space left on device.*state\.pth"
    ) as failure:
        atomic_save({"x": torch.zeros(100_000)}, path)
    shown = "".join(traceback.format_exception(failure.value))
    assert shown.count("Traceback") == 1  # Recipes show the first error of a log.
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def test_a_schedules_milestones_stay_a_counter() -> None:
    kept = plain({"milestones": Counter([2, 3]), "rate": np.float64(0.5)})
    assert kept == {"milestones": Counter([2, 3]), "rate": 0.5}
    assert (type(kept["milestones"]), type(kept["rate"])) == (Counter, float)
