"""Fits for test_killed, under `distopt launch`: FOLDER WAY, a way of `main`."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, flat, loaders, trainer

KILLED = {"adpsgd": 0, "bmuf_adam": 1}
"""Algorithm -> the learner whose death ends its fit."""

SURVIVED = "adpsgd survived"


class Dying(Toy):
    """One learner is killed in the third batch of the second epoch.

    Args:
        dies: the learner.
        folder: where each learner writes down its samples, before it uses them.
        schedule: of the learning rate; see `Toy`.
    """

    def __init__(self, dies: int, folder: Path, schedule: str = "epoch") -> None:
        super().__init__(schedule, pause=0.02)
        self.dies, self.folder = dies, folder

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if (self.global_rank, self.current_epoch, batch_idx) == (self.dies, 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        self._write_down("trained", batch)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self._write_down("validated", batch)
        super().validation_step(batch, batch_idx)

    def _write_down(self, what: str, batch: list[Tensor]) -> None:
        name = f"{what}.{self.current_epoch}.{self.global_rank}"
        with open(self.folder / name, "a") as file:
            print(*batch[0].tolist(), file=file)


def fit(folder: Path, algorithm: str, module: Toy, again: bool = False) -> Any:
    """Train for three epochs; return the model and the samples of this learner."""
    torch.manual_seed(int(os.environ["RANK"]))
    fitted = trainer(
        folder,
        DistoptStrategy(algorithm),
        int(os.environ["WORLD_SIZE"]),
        enable_checkpointing=True,
        callbacks=[
            ModelCheckpoint(folder, save_last=True, monitor="valid_loss"),
            EarlyStopping("valid_loss", patience=9),
        ],
        max_epochs=3,
    )
    path = folder / "last.ckpt" if again else None
    fitted.fit(module, **loaders(60), ckpt_path=path)
    return flat(module).tolist(), module.seen


def again(folder: Path) -> None:
    """Let all that were killed go on, and train one that was not; write results."""
    found = {
        name: fit(folder / name, name, Toy("epoch"), again=True) for name in KILLED
    }
    found["whole"] = fit(folder / "whole", "bmuf_adam", Toy("epoch"))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def survive(folder: Path) -> None:
    """Train on without learner 1; write what has come of it."""
    module = Dying(1, folder, "step")
    model, _ = fit(folder, "adpsgd", module)
    kept = flat(Toy.load_from_checkpoint(folder / "last.ckpt")).tolist()
    rate = module.trainer.optimizers[0].param_groups[0]["lr"]
    found = {"model": model, "kept": kept, "losses": module.losses, "rate": rate}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def main(folder: Path, way: str) -> None:
    """Go the way: a fit in which a learner is killed, or `again`."""
    if way == "again":
        again(folder)
    elif way == SURVIVED:
        survive(folder / way)
    else:
        fit(folder / way, way, Dying(KILLED[way], folder / way))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
