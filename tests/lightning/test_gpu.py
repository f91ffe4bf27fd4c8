"""Fits on a GPU. Two learners share it, and communicate by NCCL."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from tests.lightning.toy import Joined, Toy, loaders, strategy, trainer
from tests.processes import launch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)


class Apart(Joined):
    """An environment whose processes are machines of one GPU each."""

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return torch.distributed.get_rank()


def fit(folder: Path, algorithm: str, **options: Any) -> dict[str, Any]:
    environment = Apart()
    torch.manual_seed(3 + torch.distributed.get_rank())
    module = Toy("epoch")
    plain = DDPStrategy(cluster_environment=environment)
    ours = strategy(algorithm, environment=environment) if algorithm != "ddp" else plain
    fitted = trainer(
        folder,
        ours,
        1,
        accelerator="gpu",
        num_nodes=2,
        max_epochs=2,
        **options,
    )
    fitted.fit(module, **loaders())
    parameters = nn.utils.parameters_to_vector(module.parameters())
    return {"parameters": parameters.tolist(), "losses": module.losses}


def fits(folder: Path) -> dict[str, Any]:
    found = {name: fit(folder, name) for name in ("ddp", "allreduce", "adpsgd")}
    for name in ("ddp", "allreduce"):
        found[f"{name} mixed"] = fit(folder, name, precision="bf16-mixed")
    return found


def test_two_learners_share_a_gpu(tmp_path: Path) -> None:
    found = launch(2, fits, tmp_path, timeout=200, backend="nccl")
    for each in found:
        for kind in ("", " mixed"):
            ours, plain = each[f"allreduce{kind}"], each[f"ddp{kind}"]
            assert ours["parameters"] == pytest.approx(plain["parameters"], abs=1e-5)
        assert each["adpsgd"]["losses"][1] < each["adpsgd"]["losses"][0]
        assert each["adpsgd"] == found[0]["adpsgd"]
