"""Trainings of ESPnet on a GPU. Learners share it, and communicate by gloo or NCCL."""

from pathlib import Path

import pytest
import torch

from espnet_distopt.monitoring import lines
from tests.espnet.toy import arguments
from tests.espnet.training.learners import Apart, Sharing, kill_at_step, load, trained
from tests.espnet.training.test_training import assert_mean_of_two, decodes

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)
ON_GPU = ["--ngpu", "1", "--local_rank", "0"]
BACKENDS = ["gloo", "nccl"]
MIXED = ["--use_amp", "true"]
SGD = ["--optim", "sgd", "--optim_conf", "lr=0.1"]
"""Two of its trainings are as close as their gradients. CTC's are sums of which a GPU
takes the terms in any order, and Adam makes a whole step of the rest of such a sum."""


def options_of(data: Path, exp: Path, algorithm: str, *more: str) -> list[str]:
    return arguments(data, exp, "--distopt", algorithm, *ON_GPU, *more)


def assert_close(one: Path, other: Path) -> None:
    left, right = load(one), load(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["adpsgd", "bmuf", "allreduce"])
def test_one_learner_is_stock_training(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    trained(arguments(data, stock, *ON_GPU, *SGD), 1, tmp_path, task="stock")
    trained(options_of(data, ours, algorithm, *SGD), 1, tmp_path)
    assert_close(stock / "2epoch.pth", ours / "2epoch.pth")


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_learners_write_their_mean(
    backend: str, mixed: bool, data: Path, tmp_path: Path
) -> None:
    more = ["--dist_backend", backend, *(MIXED if mixed else [])]
    exp = tmp_path / "exp"
    trained(options_of(data, exp, "adpsgd", *more), 2, tmp_path, Sharing(Apart()))
    assert_mean_of_two(exp, 2)
    told = lines.read(exp / "distopt" / "learner0.jsonl")
    assert any(line.gpu_memory for line in told)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("allreduce", ["--dist_backend", "nccl", *MIXED]),
        ("bmuf", ["--dist_backend", "gloo", "--distopt_conf", "period=4"]),
    ],
)
def test_killed_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, more: list[str], data: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trained(options_of(data, whole, algorithm, *SGD, *more), 2, tmp_path, Sharing())
    options = options_of(data, killed, algorithm, *SGD, *more)
    trained(options, 2, tmp_path, Sharing(kill_at_step(9)), ends=-9)
    said = trained(options, 2, tmp_path, Sharing())
    assert "goes on from its own state after epoch 1" in said
    assert_close(whole / "2epoch.pth", killed / "2epoch.pth")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["adpsgd", "bmuf_adam"])
def test_the_others_train_on_without_a_learner_that_died(
    algorithm: str, backend: str, data: Path, tmp_path: Path
) -> None:
    options = options_of(data, tmp_path, algorithm, "--dist_backend", backend)
    if algorithm == "bmuf_adam":
        options += ["--distopt_conf", "period=4"]
    trained(options, 3, tmp_path, Sharing(kill_at_step(3, victim=1)), [0, -9, 0])
    assert all(t.isfinite().all() for t in load(tmp_path / "2epoch.pth").values())


def test_a_checkpoint_of_a_gpu_decodes_in_stock_espnet_on_a_cpu(
    data: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    trained(options_of(data, exp, "allreduce"), 2, tmp_path, Sharing())
    for device in ("cpu", "cuda"):
        assert decodes(exp, data, ctc_weight=1.0, device=device)
