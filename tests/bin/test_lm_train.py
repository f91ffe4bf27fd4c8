"""A language model is trained as safely as a recognizer."""

from pathlib import Path

import pytest

from espnet_distopt.bin.lm_train import main
from espnet_distopt.espnet.training.checkpoints import checkpoint_epoch
from espnet_distopt.files.tensors import is_whole
from tests.espnet.toy import lm_arguments, write_toy_text


def test_a_kill_while_the_checkpoint_is_written_costs_one_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_toy_text(tmp_path)
    for epochs in ("1", "2"):
        main(lm_arguments(tmp_path, "--max_epoch", epochs))
    checkpoint = tmp_path / "lm" / "checkpoint.pth"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-30])
    part = tmp_path / "lm" / "distopt" / ".checkpoint.pth.7.part"
    part.touch()
    main(lm_arguments(tmp_path, "--max_epoch", "2"))
    assert not part.exists()
    assert "checkpoint.pth is cut off; going back one epoch" in caplog.text
    assert checkpoint_epoch(tmp_path / "lm") == 2


def test_a_kill_before_the_model_is_written_costs_nothing(tmp_path: Path) -> None:
    write_toy_text(tmp_path)
    main(lm_arguments(tmp_path))
    model = tmp_path / "lm" / "1epoch.pth"
    model.write_bytes(model.read_bytes()[:-30])
    main(lm_arguments(tmp_path, "--max_epoch", "2"))
    assert is_whole(model)
