"""What a cell's figures say of its training, from a checkpoint of ESPnet's."""

from pathlib import Path

import pytest
import torch
from recipes.outcome import training


@pytest.mark.parametrize(("wrong", "left"), [((1.0, 0.95, 0.4), 3), ((1.0,), None)])
def test_the_epoch_in_which_the_plateau_is_left(
    tmp_path: Path, wrong: tuple[float, ...], left: int | None
) -> None:
    stats = {
        epoch: {"train": {"loss": 9.0}, "valid": {"loss": 10.0 / epoch, "cer_ctc": cer}}
        for epoch, cer in enumerate(wrong, 1)
    }
    torch.save({"reporter": {"stats": stats}}, tmp_path / "checkpoint.pth")
    found = training(tmp_path)
    assert found["leaves_plateau"] == left
    assert found["valid_losses"] == [10.0 / epoch for epoch in stats]
