"""Lightning's search for a learning rate ends by an exception, which is no failure."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from tests.lightning.toy import Toy, data, flat, strategy, trainer
from tests.processes import launch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SEARCH: dict[str, Any] = {"early_stop_threshold": None, "max_lr": 0.1}


class Tuned(Toy):
    lr = 0.01


def find_and_fit(
    folder: Path, algorithm: str, within: bool
) -> tuple[list[float], list[float]]:
    """Search for a rate, before the fit or within it, and fit.

    Returns the losses of the search, and the model.
    """
    module, loader = Tuned(), DataLoader(data(96), 4)
    finder = LearningRateFinder(num_training_steps=10, **SEARCH)
    more: dict[str, Any] = {"callbacks": [finder] if within else []}
    own = trainer(folder, strategy(algorithm), 2, max_epochs=1, **more)
    found: Any = None
    if not within:
        found = Tuner(own).lr_find(module, loader, num_training=10, **SEARCH)
    own.fit(module, loader)
    assert own.global_step > 0
    return (found or finder.optimal_lr).results["loss"], flat(module).tolist()


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("algorithm", ["adpsgd", "local_sgd", "allreduce"])
def test_a_fit_follows_the_search(tmp_path: Path, algorithm: str, within: bool) -> None:
    first, second = launch(2, find_and_fit, tmp_path, algorithm, within)
    assert len(first[0]) == 10
    assert first[0] == second[0], "all learners take the losses of the first one"
    assert first[1] == second[1], "the model is the consensus"
