"""Fits for test_failing, under `distopt launch`: FOLDER ALGORITHM RANK HOW."""

import os
import signal
import sys
from pathlib import Path

from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch import Tensor

from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, loaders, trainer


class Failing(Toy):
    """A learner fails in the third batch of the second epoch.

    Args:
        rank: the learner.
        how: "raises" or "dies".
    """

    def __init__(self, rank: int, how: str) -> None:
        super().__init__("epoch")
        self.rank, self.how = rank, how

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if (self.global_rank, self.current_epoch, batch_idx) == (self.rank, 1, 2):
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a bad batch")
        return super().training_step(batch, batch_idx)


if __name__ == "__main__":
    folder, algorithm, rank, how = sys.argv[1:]
    fitted = trainer(
        Path(folder),
        DistoptStrategy(algorithm),
        int(os.environ["WORLD_SIZE"]),
        enable_checkpointing=True,
        callbacks=[OnExceptionCheckpoint(folder, "on_exception")],
        max_epochs=3,
    )
    fitted.fit(Failing(int(rank), how), **loaders(64))
