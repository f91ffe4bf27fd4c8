"""Fits that are saved, for tests that stop them and let them go on."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

from espnet_distopt.errors import STOPPED
from tests.lightning.toy import Toy, flat, loaders, strategy, trainer


def fit(
    folder: Path,
    algorithm: str,
    module: Toy,
    again: str | None = None,
    own: dict[str, Any] | None = None,
    callbacks: list[pl.Callback] | None = None,
    **options: Any,
) -> list[float]:
    """Train for three epochs; return the model.

    Args:
        folder: where the checkpoints lie, "last.ckpt" among them.
        algorithm: the name of an algorithm.
        module: what is trained.
        again: the checkpoint from which the fit goes on; None: it begins.
        own: options of the strategy.
        callbacks: more of them.
        options: those of the trainer.
    """
    # Where a fit goes on, these numbers must not matter.
    torch.manual_seed((5 if again is None else 100) + dist.get_rank())
    save = ModelCheckpoint(folder / algorithm, save_last=True)
    fitted = trainer(
        folder / algorithm,
        strategy(algorithm, **(own or {})),
        dist.get_world_size(),
        enable_checkpointing=True,
        callbacks=[save, *(callbacks or [])],
        **{"max_epochs": 3, **options},
    )
    fitted.fit(module, **loaders(64), ckpt_path=again)
    return flat(module).tolist()


def stopped(folder: Path, algorithm: str, *modules: Toy, **options: Any) -> list[float]:
    """Train each module until it stops, and go on with the next; return the last one.

    Args:
        folder: see `fit`, as for the other arguments.
        algorithm: see there.
        modules: what is trained; all but the last one are told to stop.
        options: those of `fit`.
    """
    again = None
    for module in modules[:-1]:
        with pytest.raises(SystemExit) as ended:
            fit(folder, algorithm, module, again, **options)
        assert ended.value.code == STOPPED
        again = "hpc"
    return fit(folder, algorithm, modules[-1], again, **options)


def rate(module: Toy) -> float:
    """Return the learning rate with which a fit has ended."""
    found: float = module.trainer.optimizers[0].param_groups[0]["lr"]
    return found
