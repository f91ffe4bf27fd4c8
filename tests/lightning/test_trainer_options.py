"""Options of Lightning's trainer that learners could take differently; two of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
)
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import Found, Toy, data, flat, loaders, strategy, trainer
from tests.processes import launch

OVERFLOWS = 4
"""The number of steps that a scaler skips before its scale is small enough."""


class Steps(Callback):
    """Notes how many steps the session has counted at the end of the fit."""

    count = 0

    def __init__(self) -> None:
        self.accumulated: list[bool] = []

    def on_after_backward(self, trainer: Any, *_: Any) -> None:
        learner = getattr(trainer.strategy, "_fit", None) and learner_of(trainer)
        self.accumulated += [learner.accumulates] if learner else []

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self.count = learner_of(trainer).steps


def learner_of(trainer: Any) -> Any:
    return trainer.strategy._fit.session.learner


class Own(Toy):
    """Logs a value that each learner has for itself, and only learner 0's is low."""

    def on_validation_epoch_end(self) -> None:
        self.log("own", float(self.global_rank))


def scaled(overflows: int) -> MixedPrecision:
    """Return 16-mixed on the CPU, whose first steps overflow and are skipped."""
    # float32's largest number is 2**128; halved at each overflow, the scale is right.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + 40 * (overflows > 0)))
    scaler.set_backoff_factor(2.0 ** (-40 / max(1, overflows)))
    return MixedPrecision("16-mixed", "cpu", scaler=scaler)


def fit(
    folder: Path, module: Toy, algorithm: str | None, learners: int, **options: Any
) -> dict[str, Any]:
    """Train; `algorithm` None is Lightning's single device."""
    torch.manual_seed(3 + dist.get_rank() if learners > 1 else 3)
    steps = Steps()
    callbacks = [steps, *options.pop("callbacks", [])]
    if learners > 1:
        chosen: Any = strategy(str(algorithm))
    else:
        chosen = DistoptStrategy(algorithm) if algorithm else "auto"
        callbacks = callbacks if algorithm else []
    fitted = trainer(
        folder, chosen, learners, **{"max_epochs": 2, "callbacks": callbacks, **options}
    )
    fitted.fit(module, **loaders())
    return {
        "model": flat(module).tolist(),
        "seen": module.seen,
        "epochs": fitted.current_epoch,
        "rate": fitted.optimizers[0].param_groups[0]["lr"],
        "attempted": steps.count,
        "accumulated": steps.accumulated,
        "made": float(next(iter(fitted.optimizers[0].state.values()))["step"]),
        "precision": str(fitted.precision),
    }


def fits_of_two(folder: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    low = EarlyStopping("own", stopping_threshold=0.5)
    slow = 0.05 * rank
    overflows = OVERFLOWS * rank
    return {
        "stopped": fit(folder, Own(), "adpsgd", 2, callbacks=[low], max_epochs=4),
        "skipped": fit(folder, Toy(), "bmuf_adam", 2, plugins=[scaled(overflows)]),
        "half": fit(folder, Toy("epoch"), "adpsgd", 2, precision="16-mixed"),
        "averaged": fit(folder, Toy(), "allreduce", 2, accumulate_grad_batches=2),
        "accumulated": fit(
            folder,
            Toy("step", slow),
            "adpsgd",
            2,
            accumulate_grad_batches=2,
            gradient_clip_val=0.1,
        ),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(2, fits_of_two, tmp_path_factory.mktemp("options"), timeout=200)


def test_all_stop_early_if_one_is_content(two: Found) -> None:
    assert [learner["stopped"]["epochs"] for learner in two] == [1, 1]


def test_a_skipped_step_is_an_attempted_one(two: Found) -> None:
    first, second = (learner["skipped"] for learner in two)
    assert first["attempted"] == second["attempted"] == 12
    assert first["model"] == second["model"]
    assert torch.tensor(first["model"]).isfinite().all()


def test_half_precision_on_a_cpu_is_bfloat16(two: Found) -> None:
    for learner in two:
        assert learner["half"]["precision"] == "bf16-mixed"
        assert learner["half"]["model"] == two[0]["half"]["model"]
        # A schedule by epoch: halved after each.
        assert learner["half"]["rate"] == pytest.approx(0.0025)


def test_accumulated_gradients_are_averaged_once_a_step(two: Found) -> None:
    found = [learner["averaged"] for learner in two]
    assert found[0]["model"] == found[1]["model"]
    for each in found:
        assert each["accumulated"] == [True, False] * each["attempted"]


def test_accumulation_and_clipping_with_shares_that_differ(two: Found) -> None:
    found = [learner["accumulated"] for learner in two]
    assert found[0]["model"] == found[1]["model"]
    assert sorted(n for each in found for n in each["seen"]) == sorted([*range(48)] * 2)
    assert len(found[1]["seen"]) < len(found[0]["seen"])
    for each in found:
        assert each["rate"] == pytest.approx(0.001)


def test_skipped_steps_of_one_learner_are_lightnings_own(tmp_path: Path) -> None:
    plain = fit(tmp_path, Toy(), None, 1, plugins=[scaled(OVERFLOWS)])
    ours = fit(tmp_path, Toy(), "bmuf_adam", 1, plugins=[scaled(OVERFLOWS)])
    free = fit(tmp_path, Toy(), None, 1, plugins=[scaled(0)])
    assert ours["model"] == plain["model"] != free["model"]
    assert (ours["attempted"], ours["made"]) == (24, 24 - OVERFLOWS)


def best(folder: Path, again: bool) -> tuple[str, int, list[float]]:
    """Fit with a slow learner, and load what its ModelCheckpoint calls the best."""
    save = ModelCheckpoint(folder, monitor="valid_loss")
    pause = 0.1 if dist.get_rank() else 0.0
    options: dict[str, Any] = {"enable_checkpointing": True, "callbacks": [save]}
    own = trainer(folder, strategy("adpsgd"), 2, max_epochs=2, **options)
    module = Toy(pause=pause)
    own.fit(module, **loaders())
    steps = own.global_step
    if again:
        own.fit_loop.max_epochs = 3
        own.fit(module, **loaders(), ckpt_path="best")
    else:
        own.validate(module, loaders()["val_dataloaders"], ckpt_path="best")
    Toy.load_from_checkpoint(save.best_model_path)
    return save.best_model_path, steps, flat(module).tolist()


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("again", [False, True])
def test_the_best_checkpoint_is_the_same_for_all(tmp_path: Path, again: bool) -> None:
    first, second = launch(2, best, tmp_path, again)
    assert first[1] != second[1], "learners count their own steps"
    assert first[0] == second[0]
    assert first[2] == second[2]


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


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("algorithm", ["adpsgd", "local_sgd", "allreduce"])
def test_a_fit_follows_the_search(tmp_path: Path, algorithm: str, within: bool) -> None:
    first, second = launch(2, find_and_fit, tmp_path, algorithm, within)
    assert len(first[0]) == 10
    assert first[0] == second[0], "all learners take the losses of the first one"
    assert first[1] == second[1], "the model is the consensus"
