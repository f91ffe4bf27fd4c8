"""Fits for test_failing, under `distopt launch`: FOLDER ALGORITHM RANK HOW.

HOW is `raises` or `dies`, by which that learner ends. With `FOLDER again`, those of
`KILLED` go on.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from torch import Tensor

from espnet_distopt.errors import PeerLostError
from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, flat, loaders, trainer

KILLED = {"adpsgd": 0, "bmuf_adam": 1}
"""Algorithm -> the learner whose death ends its fit."""


class Failing(Toy):
    """A learner fails in the third batch of the second epoch, as `how` says.

    The other one waits there for that, because it could take all batches of a work
    queue before the first one has had three. A file is the mark of it.
    """

    def __init__(self, rank: int, how: str, mark: Path) -> None:
        super().__init__("epoch")
        self.rank, self.how, self.mark = rank, how, mark

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if (self.current_epoch, batch_idx) == (1, 2):
            if self.global_rank == self.rank:
                self.mark.touch()
                if self.how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("a bad batch")
            while not self.mark.exists():
                time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def fit(folder: Path, algorithm: str, module: Toy, again: bool = False) -> Any:
    """Train for three epochs; return the model and the samples of this learner."""
    torch.manual_seed(int(os.environ["RANK"]))
    fitted = trainer(
        folder,
        DistoptStrategy(algorithm),
        int(os.environ["WORLD_SIZE"]),
        enable_checkpointing=True,
        callbacks=[
            ModelCheckpoint(folder, save_last=True),
            OnExceptionCheckpoint(folder, "on_exception"),
        ],
        max_epochs=3,
    )
    path = folder / "last.ckpt" if again else None
    fitted.fit(module, **loaders(64), ckpt_path=path)
    return flat(module).tolist(), module.seen


def again(folder: Path) -> None:
    """Let all that were killed go on, and train one that was not; write results."""
    found = {
        name: fit(folder / name, name, Toy("epoch"), again=True) for name in KILLED
    }
    found["whole"] = fit(folder / "whole", "bmuf_adam", Toy("epoch"))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def fail(folder: Path, algorithm: str, rank: str, how: str) -> None:
    """Train until the learner fails."""
    try:
        fit(folder, algorithm, Failing(int(rank), how, folder / "mark"))
    except PeerLostError:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGTERM)  # As the launcher may, just then.
        raise


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    if words == ["again"]:
        again(Path(where))
    else:
        fail(Path(where), *words)
