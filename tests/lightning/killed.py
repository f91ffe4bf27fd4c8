"""Fits for test_killed, under `distopt launch`: FOLDER WAY, the second one of WAYS."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from espnet_distopt.errors import PeerLostError
from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, flat, loaders, trainer

KILLED = {"adpsgd": 0, "bmuf_adam": 1}
"""Algorithm -> the learner whose death ends its fit."""


class Dying(Toy):
    """A learner is killed in the third batch of the second epoch.

    The other one waits there for that, because it could take all batches of a work
    queue before the first one has had three.

    Args:
        dies: its rank.
        mark: a file that is there once it dies.
    """

    def __init__(self, dies: int, mark: Path) -> None:
        super().__init__("epoch")
        self.dies, self.mark = dies, mark

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if (self.current_epoch, batch_idx) == (1, 2):
            if self.global_rank == self.dies:
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
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
        callbacks=[ModelCheckpoint(folder, save_last=True)],
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


def main(folder: Path, way: str) -> None:
    """Go the way: an algorithm, with which a learner is killed, or `again`."""
    if way == "again":
        again(folder)
    else:
        try:
            fit(folder / way, way, Dying(KILLED[way], folder / f"{way} dies"))
        except PeerLostError:
            os.kill(os.getpid(), signal.SIGTERM)  # As the launcher may, just then.
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
