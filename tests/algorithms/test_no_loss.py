"""Averaged models lose nothing to averaged gradients with Adam, in real processes.

Four learners take two samples a step, of the digits of scikit-learn with noise on them:
so the training is an endless stream, in which a held-out loss is a training loss.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from espnet_distopt import Session
from tests.processes import launch

LEARNERS = 4
SAMPLES = 2
STEPS = 600
TOGETHER = 10
"""The learners meet after so many steps: how far they are apart, and how many exchanges
they make, does not depend on the load of the machine."""
NOISE = 0.7
"""The noise on the features, in their standard deviations."""

RUNS = {
    "allreduce": ("allreduce", {}),
    "adpsgd": ("adpsgd", {}),
    "local_sgd": ("local_sgd", {}),
    "adpsgd, local": ("adpsgd", {"second_moment": "local"}),
    "local_sgd, local": ("local_sgd", {"second_moment": "local"}),
}


class Digits:
    """The digits with features of variance 1; every fifth one is held out."""

    def __init__(self) -> None:
        bunch = load_digits()
        x = torch.tensor(bunch.data, dtype=torch.float32)
        x = (x - x.mean(0)) / x.std(0).clamp(min=0.5)
        y = torch.tensor(bunch.target)
        held = torch.arange(len(x)) % 5 == 0
        self.training, self.held_out = (x[~held], y[~held]), (x[held], y[held])

    def stream(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one learner, without an end."""
        source = torch.Generator().manual_seed(seed)
        x, y = self.training
        while True:
            drawn = torch.randint(len(x), (SAMPLES,), generator=source)
            noise = torch.randn(SAMPLES, x.shape[1], generator=source)
            yield x[drawn] + NOISE * noise, y[drawn]

    def loss(self, model: nn.Module) -> float:
        """Return the held-out cross-entropy, over ten draws of the noise."""
        source = torch.Generator().manual_seed(0)
        x, y = (t.repeat(10, *[1] * (t.dim() - 1)) for t in self.held_out)
        noisy = x + NOISE * torch.randn(x.shape, generator=source)
        with torch.no_grad():
            return float(cross_entropy(model(noisy), y))


def losses() -> dict[str, float]:
    """Train by every run; return its held-out loss."""
    return {run: train(*how) for run, how in RUNS.items()}


def train(name: str, options: dict[str, str], seed: int = 0) -> float:
    """Train as one learner; return the held-out loss of the consensus model."""
    digits = Digits()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = Adam(model.parameters(), lr=0.001)
    batches = digits.stream(1000 * seed + dist.get_rank())
    with Session(model, optimizer, name, **options) as session:
        for step in range(STEPS):
            x, y = next(batches)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            session.step()
            if step % TOGETHER == TOGETHER - 1:
                dist.barrier()
        with session.consensus():
            return digits.loss(model)


@pytest.mark.parametrize("name", ["adpsgd", "local_sgd"])
def test_four_learners_reach_what_all_reduce_reaches(
    name: str, found: dict[str, float]
) -> None:
    whole = found["allreduce"]
    assert found[name] < 1.05 * whole
    assert found[f"{name}, local"] > 1.15 * whole, "the problem must show the loss"


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    results: list[dict[str, float]] = launch(LEARNERS, losses, timeout=240)
    return results[0]
