"""A fit that is killed between epochs goes on with the schedule and the batches due."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from tests.lightning.stopping import fit, rate
from tests.lightning.toy import Toy
from tests.processes import launch

KINDS = [("epoch", 2), ("step", 2), ("step", 1)]
"""The schedule's interval, and after how many epochs each validation comes.

After two, checkpoints are saved at the end of the validation; after one, at that of the
epoch.
"""


class Noted(Toy):
    """Notes the rate at the beginning of each epoch, and the batches of each."""

    def __init__(self, schedule: str) -> None:
        super().__init__(schedule)
        self.rates: list[float] = []
        self.batches: dict[int, list[list[int]]] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.rates.append(rate(self))
        had = self.batches.setdefault(self.current_epoch, [])
        had.append(batch[0].tolist())
        return super().training_step(batch, batch_idx)


class Halt(Callback):
    """Ends the fit after the second epoch."""

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.current_epoch == 1


def noted(folder: Path, schedule: str, every: int, **options: Any) -> dict[str, Any]:
    module = Noted(schedule)
    own = {"max_epochs": 4, "check_val_every_n_epoch": every, **options}
    fit(folder, "adpsgd", module, **own)
    return {
        "rates": [*module.rates, rate(module)],
        "batches": module.batches,
        "validations": len(module.losses),
    }


def runs(folder: Path) -> list[dict[str, Any]]:
    found = []
    for schedule, every in KINDS:
        place = folder / f"{schedule} {every}"
        last = str(place / "adpsgd" / "last.ckpt")
        found.append(
            {
                "whole": noted(folder / "whole", schedule, every),
                "killed": noted(place, schedule, every, callbacks=[Halt()]),
                "again": noted(place, schedule, every, again=last),
            }
        )
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    return launch(2, runs, tmp_path_factory.mktemp("two"), timeout=200)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=map(str, KINDS))
def test_the_schedule_goes_on(two: list[list[dict[str, Any]]], kind: int) -> None:
    for learner in two:
        whole, killed, again = learner[kind].values()
        assert len(whole["rates"]) == 5
        assert killed["rates"] == whole["rates"][:3]
        assert again["rates"] == whole["rates"][2:]
        validations = killed["validations"] + again["validations"]
        assert validations == whole["validations"] == 4 // KINDS[kind][1]


def batches(two: list[Any], kind: int, run: str, epoch: int) -> list[list[int]]:
    """Return the batches of both learners in an epoch, sorted."""
    return sorted(b for each in two for b in each[kind][run]["batches"][epoch])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=map(str, KINDS))
def test_each_epoch_has_its_own_order(
    two: list[list[dict[str, Any]]], kind: int
) -> None:
    for epoch in (2, 3):
        due = batches(two, kind, "whole", epoch)
        assert batches(two, kind, "again", epoch) == due
        assert due != batches(two, kind, "whole", epoch - 1)
