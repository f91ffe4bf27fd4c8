"""Fits in a job of Slurm, which Lightning's plug-in requeues: FOLDER.

The first fit is stopped by SIGUSR1 and goes on when the job starts again; the second
one is the same without a stop.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, flat, loaders, trainer


class Told(Toy):
    """Each learner notes its samples, and waits once for the signal within an epoch.

    Args:
        notes: the path of its notes, without the number of the learner.
    """

    def __init__(self, notes: Path) -> None:
        super().__init__("step")
        self.notes = notes

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        where = [restarts, self.current_epoch, batch_idx]
        with open(f"{self.notes}.{self.global_rank}", "a") as file:
            print(json.dumps([*where, batch[0].tolist()]), file=file)
        fit = self.trainer.strategy._fit
        while where == [0, 1, 2] and not fit.signals.ask_to_stop:
            time.sleep(0.05)
        return super().training_step(batch, batch_idx)


def main(folder: Path) -> None:
    """Make both fits, and write the models."""
    found = {}
    for name in ("requeued", "whole"):
        torch.manual_seed(3 + int(os.environ["SLURM_PROCID"]))
        module = Told(folder / name)
        place = folder / f"{name} fit"
        fitted = trainer(place, DistoptStrategy("bmuf_adam", period=2), 2, max_epochs=2)
        fitted.fit(module, **loaders(64))
        found[name] = flat(module).tolist()
    (folder / f"{os.environ['SLURM_PROCID']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
