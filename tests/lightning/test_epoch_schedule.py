"""The steps of schedules at an epoch's end, taken back in a checkpoint."""

from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, OneCycleLR, StepLR

from espnet_distopt.lightning.epoch_schedule import remember, take_back


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
