"""Schedules by step with a work queue, and the steps of others that are taken back."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    StepLR,
)

from espnet_distopt.errors import InputError
from espnet_distopt.lightning.schedules import (
    StepSchedule,
    remember,
    share,
    take_back,
)
from tests.lightning.stopping import fit, rate
from tests.lightning.toy import Found, Toy, loaders, strategy, trainer
from tests.processes import launch

EPOCHS = 2


class Queue:
    """The progress of an epoch of twelve batches on each learner."""

    step, steps = 0, 12


def lightnings_steps(batches: int, accumulated: int, frequency: int) -> int:
    """Return how often Lightning itself steps a scheduler in an epoch of 12."""
    numbers = range(1, batches + 1)
    steps = [n for n in numbers if n % accumulated == 0 or n == Queue.steps]
    return sum(n % frequency == 0 for n in steps)


@pytest.mark.parametrize("frequency", [1, 3, 4, 5])
@pytest.mark.parametrize("accumulated", [1, 2, 5])
def test_it_steps_where_lightning_would(accumulated: int, frequency: int) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    plain = LambdaLR(optimizer, lambda step: 1.0 - 0.01 * step)
    config = LRSchedulerConfig(plain, interval="step", frequency=frequency)
    (schedule,) = share([config])
    assert (config.scheduler, config.frequency) == (schedule, 1)
    optimizer.step()  # PyTorch wants one before those of the schedule.
    queue: Any = Queue()
    # The number of accumulated batches is set after the epoch's loader has begun.
    number = 1
    schedule.begin_epoch(queue, lambda: number, 0)
    number = accumulated
    for done in range(Queue.steps):
        queue.step = done + 1  # One is read ahead.
        schedule.step()
        assert schedule.done == lightnings_steps(done, accumulated, frequency)
    schedule.finish_epoch()
    assert schedule.done == lightnings_steps(Queue.steps, accumulated, frequency)
    assert plain.last_epoch == schedule.done
    # In the next epoch, it is the same one.
    assert share([config]) == [schedule]
    assert isinstance(schedule, StepSchedule)


@pytest.mark.parametrize("own", [{}, {"epoch": 7}])
def test_a_module_may_give_its_own_steps(own: dict[str, int]) -> None:
    """`scheduler.step(self.global_step)` in `lr_scheduler_step` is for DDP."""
    schedule, plain = begun()
    for _ in range(2):
        schedule.step(*(() if own else (7,)), **own)
    assert plain.last_epoch == schedule.done == 3


def test_a_part_of_an_epoch_is_refused() -> None:
    schedule, plain = begun()
    with pytest.raises(InputError, match=r"LambdaLR.step has a part of an epoch"):
        schedule.step(0.25)
    assert plain.last_epoch == 0


def begun() -> tuple[StepSchedule, LambdaLR]:
    """Return a schedule within an epoch, three steps behind."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    plain = LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    queue: Any = Queue()
    queue.step = 4
    schedule = StepSchedule(plain)
    schedule.begin_epoch(queue, lambda: 1, 0)
    return schedule, plain


class Rare(Toy):
    """Its schedule steps once in so many batches.

    Args:
        frequency: so many.
        pause: see `Toy`.
    """

    def __init__(self, frequency: int, pause: float) -> None:
        super().__init__(pause=pause)
        self.frequency = frequency

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
        schedule = LambdaLR(optimizer, lambda step: 0.5**step)
        rare = {"interval": "step", "frequency": self.frequency, "scheduler": schedule}
        return {"optimizer": optimizer, "lr_scheduler": rare}


def fits(folder: Path) -> dict[str, float]:
    found = {}
    for name, frequency, callbacks in (
        ("rare", 5, []),
        ("accumulated", 1, [GradientAccumulationScheduler({0: 4})]),
    ):
        module = Rare(frequency, pause=0.05 * dist.get_rank())
        fitted = trainer(
            folder, strategy("adpsgd"), 2, max_epochs=EPOCHS, callbacks=callbacks
        )
        fitted.fit(module, **loaders(96))
        found[name] = fitted.optimizers[0].param_groups[0]["lr"]
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return launch(2, fits, tmp_path_factory.mktemp("schedules"), timeout=100)


@pytest.mark.parametrize(("name", "steps"), [("rare", 2), ("accumulated", 3)])
def test_all_learners_end_at_the_rate_of_equal_shares(
    two: list[dict[str, float]], name: str, steps: int
) -> None:
    # Of twelve batches an epoch, twice.
    due = 1e-3 * 0.5 ** (steps * EPOCHS)
    assert [learner[name] for learner in two] == [pytest.approx(due)] * 2


def made() -> tuple[torch.optim.Optimizer, list[LRSchedulerConfig]]:
    """Return an optimizer with three schedules by epoch and one by step."""
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    by_epoch = [
        StepLR(optimizer, 1, 0.5),
        ExponentialLR(optimizer, 0.9),
        OneCycleLR(optimizer, 1.0, 10),
    ]
    configs = [LRSchedulerConfig(each, interval="epoch") for each in by_epoch]
    by_step = LRSchedulerConfig(ConstantLR(optimizer, 0.1, 5), interval="step")
    return optimizer, [by_step, *configs]


def saved(
    optimizer: torch.optim.Optimizer, configs: list[LRSchedulerConfig]
) -> dict[str, Any]:
    """Return what Lightning saves of them."""
    return {
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [each.scheduler.state_dict() for each in configs],
    }


def test_what_is_saved_is_what_was_before_the_last_step() -> None:
    optimizer, configs = made()
    for _ in range(3):
        schedules = remember(configs, optimizer)
        optimizer.step()
        before = deepcopy(saved(optimizer, configs))
        for config in configs[1:]:
            config.scheduler.step()  # type: ignore[call-arg]
    after = deepcopy(saved(optimizer, configs))
    checkpoint = saved(optimizer, configs)
    take_back(schedules, checkpoint)
    assert checkpoint == before != after
    assert saved(optimizer, configs) == after  # The fit itself is as it was.


def test_nothing_is_taken_back_that_was_not_stepped() -> None:
    optimizer, configs = made()
    remember(configs, optimizer)
    optimizer.step()
    for config in configs[1:]:
        config.scheduler.step()  # type: ignore[call-arg]
    schedules = remember(configs, optimizer)  # The next epoch begins.
    checkpoint, expected = saved(optimizer, configs), saved(optimizer, configs)
    take_back(schedules, checkpoint)
    assert checkpoint == expected


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


def runs(folder: Path) -> Found:
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
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    return launch(2, runs, tmp_path_factory.mktemp("two"), timeout=200)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=map(str, KINDS))
def test_the_schedule_goes_on(
    two_epochs: list[list[dict[str, Any]]], kind: int
) -> None:
    for learner in two_epochs:
        whole, killed, again = learner[kind].values()
        assert len(whole["rates"]) == 5
        assert killed["rates"] == whole["rates"][:3]
        assert again["rates"] == whole["rates"][2:]
        validations = killed["validations"] + again["validations"]
        assert validations == whole["validations"] == 4 // KINDS[kind][1]


def batches(two_epochs: list[Any], kind: int, run: str, epoch: int) -> list[list[int]]:
    """Return the batches of both learners in an epoch, sorted."""
    return sorted(b for each in two_epochs for b in each[kind][run]["batches"][epoch])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=map(str, KINDS))
def test_each_epoch_has_its_own_order(
    two_epochs: list[list[dict[str, Any]]], kind: int
) -> None:
    for epoch in (2, 3):
        due = batches(two_epochs, kind, "whole", epoch)
        assert batches(two_epochs, kind, "again", epoch) == due
        assert due != batches(two_epochs, kind, "whole", epoch - 1)
