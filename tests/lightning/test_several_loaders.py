"""Several loaders of training, whose batches Lightning combines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import DataLoader

from espnet_distopt.errors import InputError
from espnet_distopt.lightning import DistoptStrategy
from espnet_distopt.lightning.queued_loading import QueuedLoader
from tests.lightning.toy import Toy, data, trainer


class Both(Toy):
    """Trains on a batch of each of two loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        super().training_step(batch["b"], batch_idx)
        return super().training_step(batch["a"], batch_idx)


def fit(folder: Path, module: Both, again: str | None = None) -> None:
    fitted = trainer(folder, DistoptStrategy("allreduce"), 1, max_epochs=2)
    both = {"a": DataLoader(data(24), 4), "b": DataLoader(data(16), 4)}
    fitted.fit(module, both, ckpt_path=again)


def test_they_are_trained_on(tmp_path: Path) -> None:
    module = Both()
    fit(tmp_path, module)
    assert len(module.seen) == 2 * 2 * 24


def test_a_run_that_was_stopped_within_an_epoch_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, Both(stop=2))
    with pytest.raises(InputError, match="within an epoch, and has 2 loaders of train"):
        fit(tmp_path, Both(), "hpc")


def test_they_share_no_work_queue() -> None:
    place: Any = SimpleNamespace(epoch_is_over=False, loaders=2)
    loader = QueuedLoader(DataLoader(data(), 4), lambda: place, lambda _: [])
    with pytest.raises(InputError, match="2 loaders of training cannot share a work q"):
        next(iter(loader))
