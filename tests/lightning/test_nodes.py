"""Nodes of learners: those of a node step together, and wait for no other node."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from espnet_distopt.errors import InputError, PeerLostError
from tests.lightning.toy import Toy, loaders, strategy, trainer
from tests.processes import launch


class Skipping(Toy):
    """Learner 3 skips a batch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if (self.global_rank, batch_idx) == (3, 1) else loss


def fit(folder: Path, module: Toy) -> None:
    nodes = strategy("hadpsgd", per_node=2, max_staleness=64)
    trainer(folder, nodes, 4, max_epochs=1).fit(module, **loaders(96))


def runs(folder: Path) -> dict[str, Any]:
    module = Toy(pause=0.15 if dist.get_rank() < 2 else 0.0)
    fit(folder, module)
    try:
        fit(folder, Skipping())
    except (InputError, PeerLostError) as error:
        return {"seen": module.seen, "said": f"{type(error).__name__}: {error}"}
    return {"seen": module.seen, "said": ""}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(4, runs, tmp_path_factory.mktemp("nodes"), timeout=200)


def test_a_fast_node_takes_batches_from_that_of_learner_0(
    four: list[dict[str, Any]],
) -> None:
    seen = [len(learner["seen"]) for learner in four]
    assert sum(seen) == 96
    assert seen[0] == seen[1] < 24 < seen[2] == seen[3]


def test_a_batch_that_its_node_waits_for_is_not_skipped(
    four: list[dict[str, Any]],
) -> None:
    why = "training_step has returned None, and hadpsgd averages the gradients"
    for rank, kind in ((2, "PeerLostError"), (3, "InputError")):
        assert four[rank]["said"].startswith(kind)
        assert why in four[rank]["said"]
