"""Decisions within an epoch that learners would make differently; two of them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from torch import Tensor

from espnet_distopt.errors import InputError
from tests.lightning.toy import Found, Toy, flat, loaders, strategy, trainer
from tests.processes import launch

CLOCK = "stops each learner by its own clock, and the others of"


class Clock(Timer):
    """A timer for which a step takes a second, and on learner 1 two."""

    def __init__(self, **options: Any) -> None:
        super().__init__(duration=timedelta(seconds=7), **options)
        self.steps = 0

    def time_elapsed(self, *_: Any) -> float:
        return self.steps * (1.0 + dist.get_rank())

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kw: Any) -> None:
        self.steps += 1
        super().on_train_batch_end(trainer, *args, **kw)


class Own(Toy):
    """Each learner has a loss of its own, which falls on learner 0 alone."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        falls = -1.0 if self.global_rank == 0 else 1.0
        self.log("own", falls * self.global_step)
        rank = torch.tensor(float(self.global_rank))
        self.log("mean rank", rank, sync_dist=True)
        self.ranks = self.all_gather(rank).tolist()
        return super().training_step(batch, batch_idx)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], Any, str]] = [
    ("bmuf", {}, {}, Clock, CLOCK),
    ("dpsgd", {}, {}, Clock, CLOCK),
    (
        "adpsgd",
        {"work_queue": False},
        {"val_check_interval": 0.5},
        Clock,
        CLOCK,
    ),
    (
        "local_sgd",
        {},
        {},
        lambda: ModelCheckpoint(train_time_interval=timedelta(seconds=1)),
        r"ModelCheckpoint\(train_time_interval=...\) saves by each learner's own clock",
    ),
    (
        "bmuf",
        {},
        {},
        lambda: ModelCheckpoint(monitor="own", every_n_train_steps=2),
        "every_n_train_steps=..., monitor=...\\) saves by each learner's own loss",
    ),
    ("allreduce", {}, {"val_check_interval": "00:00:00:01"}, Clock, "give a number"),
]
"""The algorithm, its options, those of the trainer, the callback, and what is said."""


def refuse(folder: Path) -> None:
    for algorithm, own, options, callback, words in REFUSED:
        made = callback()
        fitted = trainer(
            folder,
            strategy(algorithm, **own),
            2,
            max_epochs=1,
            callbacks=[made],
            enable_checkpointing=isinstance(made, ModelCheckpoint),
            **options,
        )
        with pytest.raises(InputError, match=words):
            fitted.fit(Toy(), **loaders())


def fit(folder: Path, algorithm: str, *callbacks: Any, **own: Any) -> dict[str, Any]:
    module = Own()
    fitted = trainer(
        folder / algorithm,
        strategy(algorithm, **own),
        2,
        max_epochs=3,
        callbacks=list(callbacks),
        enable_checkpointing=True,
    )
    fitted.fit(module, **loaders(40))
    return {
        "steps": fitted.global_step,
        "ranks": module.ranks,
        "mean": float(fitted.callback_metrics["mean rank"]),
        "model": flat(module).tolist(),
    }


def runs(folder: Path) -> dict[str, Any]:
    save = ModelCheckpoint(
        folder, filename="{step}", monitor="own", every_n_train_steps=2, save_top_k=9
    )
    found = {
        "allreduce": fit(folder, "allreduce", Clock(), save),
        "hadpsgd": fit(folder, "hadpsgd", Clock(), per_node=2, work_queue=False),
        "d1d_grad": fit(folder, "d1d_grad", Clock()),
    }
    refuse(folder)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decisions")


@pytest.fixture(scope="module")
def two(folder: Path) -> Found:
    return launch(2, runs, folder, timeout=60)


@pytest.mark.parametrize("algorithm", ["allreduce", "hadpsgd", "d1d_grad"])
def test_learners_that_wait_in_every_step_decide_together(
    two: Found, algorithm: str
) -> None:
    for learner in two:
        found = learner[algorithm]
        assert found["steps"] == 7  # As the clock of learner 0 says.
        assert found["ranks"] == [0.0, 1.0]
        assert found["mean"] == 0.5
        assert found["model"] == two[0][algorithm]["model"]


@pytest.mark.usefixtures("two")
def test_they_save_together(folder: Path) -> None:
    saved = {path.name for path in folder.glob("*.ckpt")}
    assert saved == {"step=2.ckpt", "step=4.ckpt", "step=6.ckpt"}
