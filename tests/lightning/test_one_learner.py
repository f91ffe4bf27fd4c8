"""One learner is Lightning's single device, bit for bit, with every algorithm."""

from pathlib import Path
from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Toy, flat, loaders, trainer
from tests.virtual import STEPS_ALONE

ALONE = sorted(ALGORITHMS.keys() - STEPS_ALONE)
OPTIONS: dict[str, Any] = {
    "schedule": "step",
    "accumulate_grad_batches": 2,
    "gradient_clip_val": 0.5,
    "num_sanity_val_steps": 1,
}


def train(folder: Path, strategy: Any, schedule: str = "", **options: Any) -> Toy:
    module = Toy(schedule)
    torch.manual_seed(3)
    trainer(folder, strategy, 1, max_epochs=2, **options).fit(module, **loaders())
    return module


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return train(tmp_path_factory.mktemp("plain"), "auto", **OPTIONS)


@pytest.mark.parametrize("name", ALONE)
def test_every_algorithm_is_the_single_device(
    tmp_path: Path, name: str, plain: Toy
) -> None:
    ours = train(tmp_path, DistoptStrategy(name), **OPTIONS)
    assert torch.equal(flat(ours), flat(plain))
    assert ours.losses == plain.losses
    assert ours.seen == plain.seen
