"""Several learners, as real processes; each process makes several fits."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.lightning import DistoptStrategy
from tests.lightning.toy import (
    Found,
    Joined,
    Toy,
    data,
    flat,
    loaders,
    strategy,
    trainer,
)
from tests.processes import launch
from tests.virtual import STEPS_ALONE


def fit(folder: Path, algorithm: str, module: Toy, **options: Any) -> dict[str, Any]:
    """Train for two epochs; return what has come of it."""
    torch.manual_seed(3 + dist.get_rank())
    save = ModelCheckpoint(folder / algorithm, filename="{epoch}")
    plain = DDPStrategy(cluster_environment=Joined())
    fitted = trainer(
        folder,
        plain if algorithm == "ddp" else strategy(algorithm),
        dist.get_world_size(),
        enable_checkpointing=True,
        callbacks=[save],
        **{"max_epochs": 2, **options},
    )
    fitted.fit(module, **loaders())
    kept = Toy.load_from_checkpoint(save.best_model_path)
    return {
        "parameters": nn.utils.parameters_to_vector(module.parameters()).tolist(),
        "model": flat(module).tolist(),
        "kept": flat(kept).tolist(),
        "seen": module.seen,
        "losses": module.losses,
        "rate": fitted.optimizers[0].param_groups[0]["lr"],
        "steps": fitted.global_step,
    }


ACCUMULATED = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
MIXED = {"precision": "bf16-mixed"}


def fits_of_four(folder: Path) -> dict[str, Any]:
    found = {}
    for name in ("ddp", "allreduce"):
        found[name] = fit(folder, name, Toy("epoch"))
        more = fit(folder, name, Toy("step"), **ACCUMULATED, **MIXED)
        found[f"{name} accumulated"] = more
    found["bmuf_adam"] = fit(folder, "bmuf_adam", Toy("epoch"))
    slow = 0.1 if dist.get_rank() == 3 else 0.01
    found["adpsgd"] = fit(folder, "adpsgd", Toy("step", pause=slow))
    return found


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(4, fits_of_four, tmp_path_factory.mktemp("four"), timeout=200)


@pytest.mark.parametrize("kind", ["", " accumulated"])
def test_allreduce_is_ddp_up_to_rounding(four: Found, kind: str) -> None:
    for learner in four:
        ours, plain = learner[f"allreduce{kind}"], learner[f"ddp{kind}"]
        assert ours["parameters"] == pytest.approx(plain["parameters"], abs=1e-5)
        for same in ("seen", "rate", "steps"):
            assert ours[same] == plain[same]


@pytest.mark.parametrize("name", ["allreduce", "bmuf_adam", "adpsgd"])
def test_all_learners_end_with_the_model_that_was_validated_and_saved(
    four: Found, name: str
) -> None:
    assert len({str(learner[name]["losses"]) for learner in four}) == 1
    losses = four[0][name]["losses"]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    for learner in four:
        assert learner[name]["model"] == four[0][name]["model"]
        assert learner[name]["kept"] == learner[name]["model"]


def test_each_batch_is_trained_on_once_and_a_slow_learner_has_few(four: Found) -> None:
    seen = Counter(n for learner in four for n in learner["adpsgd"]["seen"])
    assert seen == Counter({n: 2 for n in range(48)})
    steps = [learner["adpsgd"]["steps"] for learner in four]
    assert sum(steps) == 24
    assert steps[3] < min(steps[:3])


def test_the_schedule_is_that_of_equal_shares(four: Found) -> None:
    for learner in four:
        # Six steps with equal shares, from 1 to a tenth of 0.01.
        assert learner["adpsgd"]["rate"] == pytest.approx(0.001)


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


class Skipping(Toy):
    """Learner 3 skips a batch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if (self.global_rank, batch_idx) == (3, 1) else loss


def fit_nodes(folder: Path, module: Toy) -> None:
    nodes = strategy("hadpsgd", per_node=2, max_staleness=64)
    trainer(folder, nodes, 4, max_epochs=1).fit(module, **loaders(96))


def runs_of_nodes(folder: Path) -> dict[str, Any]:
    module = Toy(pause=0.15 if dist.get_rank() < 2 else 0.0)
    fit_nodes(folder, module)
    try:
        fit_nodes(folder, Skipping())
    except (InputError, PeerLostError) as error:
        return {"seen": module.seen, "said": f"{type(error).__name__}: {error}"}
    return {"seen": module.seen, "said": ""}


@pytest.fixture(scope="module")
def nodes_of_two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(4, runs_of_nodes, tmp_path_factory.mktemp("nodes"), timeout=200)


def test_a_fast_node_takes_batches_from_that_of_learner_0(nodes_of_two: Found) -> None:
    seen = [len(learner["seen"]) for learner in nodes_of_two]
    assert sum(seen) == 96
    assert seen[0] == seen[1] < 24 < seen[2] == seen[3]


def test_a_batch_that_its_node_waits_for_is_not_skipped(nodes_of_two: Found) -> None:
    why = "training_step has returned None, and hadpsgd averages the gradients"
    for rank, kind in ((2, "PeerLostError"), (3, "InputError")):
        assert nodes_of_two[rank]["said"].startswith(kind)
        assert why in nodes_of_two[rank]["said"]


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
def stopped_and_used(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(4, stopped_early, tmp_path_factory.mktemp("after"), timeout=200)


def test_all_learners_stop_early_together(stopped_and_used: Found) -> None:
    assert [learner["epochs"] for learner in stopped_and_used] == [1] * 4
    seen = Counter(n for learner in stopped_and_used for n in learner["seen"])
    assert seen.keys() == set(range(48))


def test_what_comes_after_sees_the_consensus_model(stopped_and_used: Found) -> None:
    for learner in stopped_and_used:
        assert learner["model"] == stopped_and_used[0]["model"]
        (validated,), (tested,) = learner["validate"], learner["test"]
        assert validated["valid_loss"] == pytest.approx(learner["loss"], rel=1e-4)
        assert tested["test_loss"] == pytest.approx(learner["loss"], rel=1e-4)
    predicted = Counter(n for learner in stopped_and_used for n in learner["predicted"])
    assert predicted == Counter(range(12))
