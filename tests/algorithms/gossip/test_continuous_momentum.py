"""Continuous momentum: the paper's two copies, their mean, and what it is for."""

import math
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from espnet_distopt.algorithms.gossip.continuous_momentum import EXTRA, strength
from tests.random_gossip import Gossip
from tests.replicas import Point, Replica, correct, end, run

ON: dict[str, Any] = {"topology": "ring", "continuous_momentum": True}


def ring(size: int, dimension: int = 1, **options: Any) -> list[Replica]:
    replicas = [
        Replica.of(
            "adpsgd",
            Point([0.0] * dimension),
            partial(SGD, lr=1.0),
            rank,
            size,
            **options,
        )
        for rank in range(size)
    ]
    run(*(r.algorithm.start(r.learner) for r in replicas))
    return replicas


def momentum(replica: Replica) -> Any:
    algorithm: Any = replica.algorithm
    return algorithm.momentum


# The strength


@pytest.mark.parametrize("size", [4, 6, 16, 64])
def test_strength_is_that_of_the_papers_closed_form_on_a_ring(size: int) -> None:
    """Edges have rate 1/2: lambda_2 = 1 - cos(2 pi / N), resistances 2 (N - 1) / N."""
    ranks = tuple(range(size))
    chi_1, chi_2 = 1 / (1 - math.cos(2 * math.pi / size)), (size - 1) / size
    keep, gain = strength("ring", ranks)
    eta = 1 / (2 * math.sqrt(chi_1 * chi_2))
    assert keep == pytest.approx(math.exp(-2 * eta), rel=1e-12)
    assert gain == pytest.approx(EXTRA * (math.sqrt(chi_1 / chi_2) - 1) / 2, rel=1e-9)


def test_an_open_ring_is_a_path() -> None:
    """Three learners: 0 and 2 both invite 1, at a rate of 1. Eigenvalues 0, 1, 3."""
    keep, gain = strength("ring", (0, 1, 2))
    eta = 1 / (2 * math.sqrt(1 * 0.5))
    assert keep == pytest.approx(math.exp(-2 * eta), rel=1e-12)
    assert gain == pytest.approx(EXTRA * (math.sqrt(1 / 0.5) - 1) / 2, rel=1e-9)


# Arithmetic


@dataclass
class Pair:
    """One learner of the oracle: the paper's x and x~, in float64."""

    x: float = 0.0
    drawn: float = 0.0
    copy: float = 0.0
    pending: list[float] = field(default_factory=list)
    due: bool = False

    def step(self, gradient: float, eta: float, alpha: float) -> None:
        self.x, self.drawn = self.x - gradient, self.drawn - gradient
        if self.due:
            weights = (1 + math.exp(-2 * eta)) / 2, (1 - math.exp(-2 * eta)) / 2
            flow = np.array([weights, weights[::-1]])  # exp(eta [[-1, 1], [1, -1]])
            self.x, self.drawn = flow @ [self.x, self.drawn]
        self.due = bool(self.pending)
        self.x += sum(self.pending) / 2
        self.drawn += alpha * sum(self.pending)
        self.pending, self.copy = [], self.x


def exchange(replicas: list[Replica], oracle: list[Pair], a: int, p: int) -> None:
    snapshots: list[Any] = [replicas[rank].algorithm.snapshot for rank in (a, p)]  # type: ignore[attr-defined]
    sent = [snapshot.begin_exchange().clone() for snapshot in snapshots]
    for snapshot, received in zip(snapshots, reversed(sent), strict=True):
        correct(snapshot, received)
    difference = oracle[p].copy - oracle[a].copy
    for rank, sign in ((a, 1), (p, -1)):
        oracle[rank].pending.append(sign * difference)
        oracle[rank].copy += sign * difference / 2


@pytest.mark.parametrize("size", [8, 5])
def test_steps_are_those_of_the_paper_with_two_copies(size: int) -> None:
    source, replicas = random.Random(size), ring(size, **ON)
    oracle = [Pair() for _ in replicas]
    keep, gain = strength("ring", tuple(range(size)))
    eta, alpha = -math.log(keep) / 2, 0.5 + gain
    for _ in range(600):
        rank = source.randrange(size)
        if source.random() < 0.5 and rank + 1 < size:
            exchange(replicas, oracle, rank, rank + 1)
        else:
            gradient = source.gauss(0, 1)
            run(replicas[rank].step(gradient))
            oracle[rank].step(gradient, eta, alpha)
    for replica, expected in zip(replicas, oracle, strict=True):
        x, velocity = replica.x[0], float(momentum(replica).velocity)
        assert x == pytest.approx(expected.x, rel=1e-10, abs=1e-10)
        assert x + velocity == pytest.approx(expected.drawn, rel=1e-10, abs=1e-10)
    assert max(abs(float(momentum(r).velocity)) for r in replicas) > 0.1


# Schedules


def noisy(replica: Replica, steps: int, seed: int) -> Any:
    source = torch.Generator().manual_seed(seed)
    like = replica.learner.params
    for _ in range(steps):
        noise = torch.randn(like.shape, generator=source, dtype=like.dtype)
        yield from replica.step(noise)  # type: ignore[arg-type]
        yield None


def values(replicas: list[Replica]) -> Tensor:
    return torch.stack([replica.learner.params for replica in replicas])


def apart(size: int, steps: int, patience: float, **options: Any) -> float:
    """Return the mean square distance at the end of `steps` noisy steps."""
    replicas = ring(size, dimension=200, **options)
    epochs = [noisy(r, steps, rank) for rank, r in enumerate(replicas)]
    Gossip(replicas, epochs, seed=1, patience=patience).run()
    end(replicas)
    x = values(replicas)
    return float((x - x.mean(0)).square().mean())


def test_a_long_ring_comes_closer() -> None:
    assert apart(32, 100, 0.02, **ON) < 0.8 * apart(32, 100, 0.02, topology="ring")


def test_rare_exchanges_do_not_drive_learners_apart() -> None:
    """In a clock of steps the velocity would act for ten units of time at once."""
    assert apart(32, 100, 3, **ON) < 1.1 * apart(32, 100, 3, topology="ring")


def test_two_learners_have_nothing_to_speed_up() -> None:
    found = []
    for options in (ON, {"topology": "ring"}):
        replicas = ring(2, dimension=3, **options)
        Gossip(replicas, [noisy(r, 20, 5) for r in replicas], seed=3).run()
        end(replicas)
        found.append(values(replicas))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


# States


def test_resume_between_epochs_is_the_uninterrupted_run() -> None:
    def train(replicas: list[Replica], seed: int) -> None:
        Gossip(replicas, [noisy(r, 15, seed) for r in replicas], seed=seed).run()
        end(replicas)

    whole, resumed = ring(6, **ON), ring(6, **ON)
    train(whole, 1)
    for fresh, saved in zip(resumed, whole, strict=True):
        fresh.learner.load_state_dict(saved.learner.state_dict())
        fresh.algorithm.load_state_dict(saved.algorithm.state_dict())
    train(whole, 2)
    train(resumed, 2)
    assert torch.equal(values(resumed), values(whole))


def test_a_state_without_velocity_begins_without() -> None:
    plain, on = ring(4, topology="ring")[0], ring(4, **ON)[0]
    assert momentum(plain) is None
    momentum(on).correct(torch.ones(1, dtype=torch.float64))
    on.algorithm.load_state_dict(plain.algorithm.state_dict())
    assert float(momentum(on).velocity) == 0
    assert not momentum(on).due


def test_an_epoch_from_the_consensus_begins_without_velocity() -> None:
    replicas = ring(4, from_consensus=True, **ON)
    for replica in replicas:
        momentum(replica).correct(torch.ones(1, dtype=torch.float64))
    run(*(r.algorithm.consensus(r.learner) for r in replicas))
    assert [float(momentum(r).velocity) for r in replicas] == [0.0] * 4
