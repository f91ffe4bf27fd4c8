"""A small model and its data, trained by Lightning in this process or in several."""

import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from espnet_distopt.lightning import DistoptStrategy
from tests import fork_server

fork_server.PRELOAD.append("espnet_distopt.lightning")
warnings.filterwarnings("ignore", module="lightning")

Found = list[dict[str, Any]]
"""What each learner of a run has found, by name."""


class Toy(pl.LightningModule):
    """A network with dropout and BatchNorm that learns the sum of its inputs.

    Args:
        schedule: "epoch" or "step" for a learning-rate schedule.
        pause: seconds that each step takes.
        stop: in the second epoch, the batch in which this process is told to stop.

    Attributes:
        signal: the one by which it is told.
        seen: the numbers of the samples that it was trained on.
        losses: those of each validation.
    """

    def __init__(
        self, schedule: str = "", pause: float = 0.0, stop: int | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Linear(6, 16, bias=False),  # Its gradient would be noise.
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 1),
        )
        self.schedule, self.pause, self.stop = schedule, pause, stop
        self.signal = signal.SIGTERM
        self.seen: list[int] = []
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        number, x = batch
        self.seen += number.tolist()
        time.sleep(self.pause)
        if batch_idx == self.stop and self.current_epoch == 1:
            os.kill(os.getpid(), self.signal)
        loss = self.error(x)
        self.log("train_loss", loss, sync_dist=True, on_step=True, on_epoch=True)
        return loss

    def error(self, x: Tensor) -> Tensor:
        return (self.net(x) - x.sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("valid_loss", self.error(batch[1]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics.get("valid_loss", -1)))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        if not self.schedule:
            return optimizer
        if self.schedule == "epoch":
            schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        else:
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, steps)
        interval = {"scheduler": schedule, "interval": self.schedule}
        return {"optimizer": optimizer, "lr_scheduler": interval}


def data(samples: int = 48) -> Dataset[Any]:
    """Return numbered samples."""
    x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(torch.arange(samples), x)


def loaders(samples: int = 48, batch: int = 4) -> dict[str, DataLoader[Any]]:
    """Return the loaders of training and validation."""
    return {
        "train_dataloaders": DataLoader(data(samples), batch, shuffle=True),
        "val_dataloaders": DataLoader(data(12), 4),
    }


def trainer(
    folder: Path, strategy: pl.strategies.Strategy | str, learners: int, **options: Any
) -> pl.Trainer:
    """Return a quiet trainer; `options` are Lightning's."""
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "accelerator": "cpu",
    }
    return pl.Trainer(
        devices=learners,
        strategy=strategy,
        default_root_dir=folder,
        **{**quiet, **options},
    )


class Joined(LightningEnvironment):
    """An environment of processes that have a process group already."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return torch.distributed.get_rank()


def strategy(
    algorithm: str, environment: Joined | None = None, **options: Any
) -> DistoptStrategy:
    """Return a strategy for a process that has its process group already."""
    found = environment or Joined()
    return DistoptStrategy(algorithm, cluster_environment=found, **options)


def flat(module: nn.Module) -> Tensor:
    """Return all parameters and statistics as one vector; no counts of batches."""
    tensors = module.state_dict().values()
    return torch.cat([each.flatten() for each in tensors if each.is_floating_point()])
