"""Several learners, as real processes; each process makes several fits."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from tests.lightning.toy import Joined, Toy, flat, loaders, strategy, trainer
from tests.processes import launch

Found = list[dict[str, Any]]


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
