"""Learners of a fit die, and the others go on, and meet at the end of each epoch."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torchmetrics import CatMetric, MeanMetric, SumMetric

from espnet_distopt import Session
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.lightning.collectives import Living
from tests.lightning.toy import Toy, flat, loaders, strategy, trainer
from tests.processes import launch

DIES = {1: ("trained", 1, 2), 2: ("validated", 2, 0)}
"""Learner -> what it does when it is killed: in which epoch, and in which batch."""


def collectives() -> dict[str, Any]:
    """Return the results of each collective of learners 0, 1 and 2."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "adpsgd") as session:
        living, rank = Living(session), dist.get_rank()
        numbers = torch.tensor([0.1, 1.0]) * (rank + 1)
        with pytest.raises(InputError, match="'bxor' is none of sum"):
            living.reduce(numbers, "bxor")
        found = {
            "gathered": living.gather(numbers),
            "flags": living.gather(torch.tensor(rank == 1)),
            "large": living.gather(torch.tensor(2**52 + rank)),
            "mean": living.reduce(numbers),
            "mean of integers": living.reduce(torch.tensor(rank)),
            "sum": living.reduce(numbers, dist.ReduceOp.SUM),
            "max": living.reduce(numbers, "max"),
            "min": living.reduce(numbers, "MIN"),
        }
        said = living.broadcast({"by": rank}, 1)
    tensors = {name: (str(each.dtype), each.tolist()) for name, each in found.items()}
    return {**tensors, "said": said}


class Dying(Toy):
    """It does as `DIES` says, and each learner writes down the samples that it uses.

    Args:
        folder: the folder of its notes, "{what}.{epoch}.{learner}".
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("step", pause=0.02)
        self.folder = folder
        self.mean, self.all, self.trained = MeanMetric(), CatMetric(), SumMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self._use("trained", batch_idx, batch[0].tolist())
        self.trained(1.0)
        self.log("trained", self.trained, on_step=True, on_epoch=True)
        assert self.trained.compute() == batch_idx + 1  # within an epoch, its own
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self._use("validated", batch_idx, batch[0].tolist())
        super().validation_step(batch, batch_idx)
        self.mean.update(batch[0].double().mean(), weight=len(batch[0]))
        self.log("mean", self.mean)
        self.all.update(batch[0])

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._write("loss", self.losses[-1:])
        self._write("metrics", [*self.all.compute().sort().values.int().tolist()])
        self._write("metrics", [float(self.trainer.callback_metrics["mean"])])
        self.all.reset()

    def _use(self, what: str, batch_idx: int, samples: list[int]) -> None:
        if DIES.get(self.global_rank) == (what, self.current_epoch, batch_idx):
            os.kill(os.getpid(), signal.SIGKILL)
        self._write(what, samples)

    def _write(self, what: str, numbers: list[Any]) -> None:
        name = f"{what}.{self.current_epoch}.{self.global_rank}"
        with open(self.folder / name, "a") as file:
            print(*numbers, file=file)


def fit(folder: Path) -> dict[str, Any]:
    """Train for three epochs with all that meets at the end of an epoch."""
    found = {"collectives": collectives()}
    module = Dying(folder)
    fitted = trainer(
        folder,
        strategy("adpsgd"),
        dist.get_world_size(),
        max_epochs=3,
        enable_checkpointing=True,
        callbacks=[
            EarlyStopping("valid_loss", patience=9),
            ModelCheckpoint(folder, save_last=True, monitor="valid_loss"),
        ],
    )
    fitted.fit(module, **loaders(60))
    with pytest.raises(PeerLostError, match="ended without learner 1, 2: validate"):
        fitted.validate(module, loaders()["val_dataloaders"])
    kept = Toy.load_from_checkpoint(folder / "last.ckpt")
    rate = fitted.optimizers[0].param_groups[0]["lr"]
    same = torch.equal(flat(module), flat(kept))
    return {**found, "kept is the model": same, "rate": rate}


def without_the_speaker() -> None:
    """Learner 0 is killed where it is to say something."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "adpsgd") as session:
        living = Living(session)
        living.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        said = r"without learner 0, which logs and saves: fit\(ckpt_path=...\) goes on"
        with pytest.raises(PeerLostError, match=said):
            living.broadcast("")


def test_who_waits_for_a_word_of_the_dead_is_told_how_to_go_on() -> None:
    launch(2, without_the_speaker, dying=[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("going_on")


@pytest.fixture(scope="module")
def survivor(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = launch(3, fit, folder, timeout=200, dying=DIES)[0]
    return found


def test_collectives_are_those_of_lightning(survivor: dict[str, Any]) -> None:
    found = survivor["collectives"]
    rows = torch.tensor([0.1, 1.0]) * torch.tensor([[1.0], [2.0], [3.0]])
    real, whole = "torch.float32", "torch.int64"
    assert found == {
        "gathered": (real, rows.tolist()),
        "flags": ("torch.bool", [False, True, False]),
        "large": (whole, [2**52, 2**52 + 1, 2**52 + 2]),
        "mean": (real, rows[1].tolist()),
        "mean of integers": (whole, 1),
        "sum": (real, rows.double().sum(0).float().tolist()),
        "max": (real, rows[2].tolist()),
        "min": (real, rows[0].tolist()),
        "said": {"by": 1},
    }


def used(folder: Path, what: str, epoch: int) -> Counter[int]:
    """Return how often each sample was used in an epoch by all learners."""
    found: Counter[int] = Counter()
    for path in folder.glob(f"{what}.{epoch}.*"):
        found.update(map(int, path.read_text().split()))
    return found


@pytest.mark.usefixtures("survivor")
def test_others_train_on_the_batches_of_the_dead(folder: Path) -> None:
    assert used(folder, "trained", 0) == Counter(range(60))
    # But for the one in which it was killed, and the next, which Lightning reads ahead.
    second = used(folder, "trained", 1)
    assert len(second) == 60 - 8
    assert set(second.values()) == {1}
    assert used(folder, "trained", 2) == Counter(range(60))
    assert not (folder / "trained.2.1").exists()


@pytest.mark.usefixtures("survivor")
def test_others_validate_the_share_of_the_dead(folder: Path) -> None:
    # Already at the end of the epoch of the death, and with one loss.
    for epoch in (0, 1):
        assert used(folder, "validated", epoch) == Counter(range(12))
    first, second = ((folder / f"loss.1.{rank}").read_text() for rank in (0, 2))
    assert first == second


def test_the_last_one_saves_although_another_died_in_validation(
    folder: Path, survivor: dict[str, Any]
) -> None:
    assert (folder / "loss.2.0").exists()
    assert not (folder / "loss.2.2").exists()
    assert survivor["kept is the model"]
    assert survivor["rate"] == pytest.approx(0.001)


@pytest.mark.usefixtures("survivor")
def test_metrics_of_torchmetrics_are_those_of_all_who_live(folder: Path) -> None:
    found = [
        (folder / f"metrics.{epoch}.{rank}").read_text().split("\n")
        for epoch, rank in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    ]
    everything = " ".join(map(str, range(12)))
    # In epoch 2 a learner dies in validation, and its share goes with it.
    assert found == [[everything, "5.5", ""]] * 5
