"""What comes after a fit, or ends it: validate, test, predict and EarlyStopping."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch.utils.data import DataLoader

from tests.lightning.toy import Toy, data, flat, loaders, strategy, trainer
from tests.processes import launch


class Evaluated(Toy):
    """It can be tested, and predicts the numbers of the samples beside its outputs."""

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_loss", self.error(batch[1]), sync_dist=True)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return batch[0], self.net(batch[1])


def stopped_early(folder: Path) -> dict[str, Any]:
    """Train until EarlyStopping is content; then use the model."""
    module = Evaluated(pause=0.02 * dist.get_rank())
    # Every loss is below this, so that it stops after the first epoch.
    stop = EarlyStopping("valid_loss", stopping_threshold=1e9)
    options = {"max_epochs": 4, "callbacks": [stop]}
    fitted = trainer(folder, strategy("hadpsgd", per_node=2), 4, **options)
    fitted.fit(module, **loaders())
    samples = DataLoader(data(12), 3)
    predicted = fitted.predict(module, samples)
    assert predicted is not None
    return {
        "epochs": fitted.current_epoch,
        "seen": module.seen,
        "fit": module.losses,
        "validate": fitted.validate(module, samples, verbose=False),
        "test": fitted.test(module, samples, verbose=False),
        "predicted": [n for numbers, _ in predicted for n in numbers.tolist()],
        "model": flat(module).tolist(),
        "loss": float(
            Evaluated.error(module.eval(), next(iter(DataLoader(data(12), 12)))[1])
        ),
    }


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(4, stopped_early, tmp_path_factory.mktemp("after"), timeout=200)


def test_all_learners_stop_early_together(four: list[dict[str, Any]]) -> None:
    assert [learner["epochs"] for learner in four] == [1] * 4
    seen = Counter(n for learner in four for n in learner["seen"])
    assert seen.keys() == set(range(48))


def test_what_comes_after_sees_the_consensus_model(four: list[dict[str, Any]]) -> None:
    for learner in four:
        assert learner["model"] == four[0]["model"]
        (validated,), (tested,) = learner["validate"], learner["test"]
        assert validated["valid_loss"] == pytest.approx(learner["loss"], rel=1e-4)
        assert tested["test_loss"] == pytest.approx(learner["loss"], rel=1e-4)
    predicted = Counter(n for learner in four for n in learner["predicted"])
    assert predicted == Counter(range(12))
