"""The training loss that is reported, with gradients that are accumulated."""

import json
from pathlib import Path

import pytest

from espnet_distopt.bin import asr_train
from tests.espnet.toy import arguments, write_toy_data


def test_accumulation_does_not_divide_the_reported_loss(tmp_path: Path) -> None:
    """ESPnet divides the loss in place, and with it what the model reports."""
    write_toy_data(tmp_path, train=8, valid=2)
    losses = []
    for accumulated in ("1", "2"):
        out = tmp_path / f"exp{accumulated}"
        more = ["--distopt", "allreduce", "--accum_grad", accumulated]
        # Nothing is learned, so that both see the same losses.
        more += ["--max_epoch", "1", "--optim_conf", "lr=0"]
        asr_train.main(arguments(tmp_path, out, *more))
        rows = (out / "distopt/learner0.jsonl").read_text().splitlines()
        (loss,) = (r["epoch_loss"] for r in map(json.loads, rows) if "epoch_loss" in r)
        losses.append(loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
