"""Training with Adasum: steps, uneven data, state, refusals.

The vectors are AS12 to AS14 of docs/algorithms/adasum.md.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import build, check
from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.lamb import Lamb
from espnet_distopt.simulation import Simulation, VirtualLearner
from tests.algorithms.adasum_learners import (
    Layers,
    Make,
    distance,
    same_bits,
    tree_of_layers,
)

SIZES = [3, 1, 6]
OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.05),
    "lamb": partial(Lamb, lr=0.05, weight_decay=0.1),
}


def targets(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(sum(SIZES), generator=generator, dtype=torch.float64)


def pull(model: Layers, rank: int) -> Callable[[int], float]:
    """Gradient of a quadratic; learner 1's never reach the second tensor."""

    def gradient(step: int) -> float:
        parts = zip(model.layers, targets(rank, step).split(SIZES), strict=True)
        losses = [(x - target).square().sum() / 2 for x, target in parts]
        if rank == 1:
            del losses[1]
        loss = torch.stack(losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


def layers() -> Layers:
    model = Layers(SIZES, torch.float64)
    with torch.no_grad():
        for x, start in zip(model.layers, targets(99, 0).split(SIZES), strict=True):
            x.copy_(start)
    return model


def virtual(make: Make, size: int, **options: Any) -> list[VirtualLearner]:
    learners = []
    for rank in range(size):
        model = layers()
        optimizer = make(model.parameters())
        gradient = pull(model, rank)
        learners.append(
            VirtualLearner(model, optimizer, gradient, "adasum", rank, size, **options)
        )
    return learners


def train(
    learners: list[VirtualLearner], *epochs: Sequence[int] | int
) -> list[VirtualLearner]:
    simulation = Simulation(learners)
    simulation.start()
    for counts in epochs:
        simulation.epoch(counts)
        consensus = simulation.consensus()
        for v in learners:
            assert same_bits(v.learner.params, consensus)
    return learners


class Plain:
    """A model that trains without the package."""

    def __init__(self, make: Make, rank: int) -> None:
        self.model = layers()
        self.optimizer = make(self.model.parameters())
        self.gradient = pull(self.model, rank)
        self.steps = 0

    def flat(self) -> Tensor:
        return torch.cat([x.detach().flatten() for x in self.model.layers])

    def write(self, flat: Tensor) -> None:
        with torch.no_grad():
            for x, part in zip(self.model.layers, flat.split(SIZES), strict=True):
                x.copy_(part)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.gradient(self.steps)
        self.optimizer.step()
        self.steps += 1


def oracle(
    make: Make,
    epochs: Sequence[Sequence[int]],
    period: int = 1,
    per_node: int = 1,
) -> Tensor:
    """Local steps, then the tree on float64 updates of tensors."""
    size = len(epochs[0])
    models = [Plain(make, rank) for rank in range(size)]
    shared = models[0].flat()
    for counts in epochs:
        left = list(counts)
        while any(left):
            updates = []
            for rank, model in enumerate(models):
                for _ in range(min(period, left[rank])):
                    model.step()
                left[rank] -= min(period, left[rank])
                updates.append(model.flat() - shared)
            nodes = torch.stack(updates).view(-1, per_node, sum(SIZES)).mean(1)
            shared = shared + tree_of_layers(list(nodes), SIZES)
            for model in models:
                model.write(shared)
    return shared


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("size", "per_node", "period", "epochs"),
    [
        (2, 1, 1, [[5, 5]]),
        (3, 1, 1, [[4, 4, 4], [3, 3, 3]]),
        (4, 1, 3, [[7] * 4, [3] * 4]),
        (4, 2, 1, [[5] * 4]),
        (6, 3, 2, [[5] * 6, [2] * 6]),
        (4, 4, 1, [[5] * 4]),
        (4, 1, 2, [[7, 0, 3, 9], [1, 8, 2, 2]]),
        (6, 2, 3, [[4, 4, 0, 0, 9, 1]]),
    ],
)
def test_training_is_local_steps_and_the_tree_of_updates(
    optimizer: str, size: int, per_node: int, period: int, epochs: list[list[int]]
) -> None:
    """AS13, AS14; uneven data neither hang nor pull towards those that have ended."""
    make = OPTIMIZERS[optimizer]
    learners = train(virtual(make, size, period=period, per_node=per_node), *epochs)
    expected = oracle(make, epochs, period, per_node)
    assert distance(learners[0].learner.params, expected) < 1e-12


def test_as12_for_plain_sgd_gradients_and_updates_are_the_same() -> None:
    deltas, gradients = (
        train(virtual(OPTIMIZERS["sgd"], 3, combine=what), 5, 3)[0].learner.params
        for what in ("deltas", "gradients")
    )
    assert distance(gradients, deltas) < 1e-12


def test_as12_optimizers_keep_their_own_state() -> None:
    learners = train(virtual(OPTIMIZERS["adam"], 2), 5)
    first, second = (
        v.optimizer.state[v.learner.parameters[0]]["exp_avg"] for v in learners
    )
    assert not torch.allclose(first, second)


def test_a_skipped_update_changes_nothing() -> None:
    """A learner whose step is skipped, as a NaN would make it, adds a zero update."""
    learners = virtual(OPTIMIZERS["adam"], 2)
    learners[1].optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    (first, _) = train(learners, 4)
    alone = Plain(OPTIMIZERS["adam"], 0)
    for _ in range(4):
        alone.step()
    assert distance(first.learner.params, alone.flat()) < 1e-15


def test_gradients_need_equal_numbers_of_steps() -> None:
    learners = virtual(OPTIMIZERS["sgd"], 3, combine="gradients")
    with pytest.raises(UnequalStepsError, match=r"combine: deltas"):
        train(learners, [3, 3, 2])


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resume_at_every_step_is_the_uninterrupted_run(
    optimizer: str, period: int
) -> None:
    """Before each step everything is lost but what was saved after the one before."""

    def interrupted(v: VirtualLearner, gradient: Callable[[int], float]) -> Any:
        def resume_first(step: int) -> float:
            states = v.learner, v.algorithm, v.optimizer
            file = io.BytesIO()
            torch.save([s.state_dict() for s in states], file)
            v.learner.params.fill_(torch.nan)
            v.learner.steps = v.learner.updates = -1
            v.optimizer.state.clear()
            fresh = build("adasum", {"period": period}, v.learner)
            v.algorithm.__dict__.update(fresh.__dict__)
            file.seek(0)
            for s, saved in zip(states, torch.load(file, weights_only=True)):  # noqa: B905
                s.load_state_dict(saved)
            return gradient(step)

        return resume_first

    make, epochs = OPTIMIZERS[optimizer], ([5, 4, 4], [2, 5, 0])
    whole = train(virtual(make, 3, period=period), *epochs)
    learners = virtual(make, 3, period=period)
    for v in learners:
        v.gradient = interrupted(v, v.gradient)
    train(learners, *epochs)
    assert same_bits(learners[0].learner.params, whole[0].learner.params)


def test_cost() -> None:
    """What the module says: 2n(N-1)/N, and half a Gram matrix for each tensor."""
    size, elements = 5, sum(SIZES)
    learners = virtual(OPTIMIZERS["sgd"], size)
    simulation = Simulation(learners)
    simulation.start()
    learners[0].metrics()
    simulation.epoch([1, 1, 1, 1, 1])
    numbers = elements + len(SIZES) * size * (size + 1) // 2 + 2 + 2
    expected = 8 * 2 * numbers * (size - 1) // size
    assert learners[0].metrics()["bytes"] == pytest.approx(expected, abs=6)


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"period": 0}, 2, "period must be >= 1, not 0"),
    ({"per_node": 0}, 2, "per_node must be >= 1, not 0"),
    ({"per_node": 4}, 6, "6 learners do not fill nodes of per_node: 4"),
    ({"per_node": 4}, 2, "2 learners do not fill nodes of per_node: 4"),
    ({"combine": "mean"}, 2, "combine must be one of deltas, gradients"),
    ({"combine": "gradients", "period": 2}, 2, "needs period: 1, not 2"),
]


@pytest.mark.parametrize(("options", "size", "words"), WRONG)
def test_what_cannot_run_is_refused(
    options: dict[str, Any], size: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check("adasum", options, size)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [("adam", "not Adam"), ("momentum", "not SGD with momentum"), ("lamb", "not Lamb")],
)
def test_gradients_are_for_plain_sgd(optimizer: str, words: str) -> None:
    model = layers()
    learner = Learner(model, OPTIMIZERS[optimizer](model.parameters()), 0, 2)
    with pytest.raises(InputError, match=words):
        build("adasum", {"combine": "gradients"}, learner)


def test_state_of_the_other_kind_is_refused() -> None:
    (deltas, gradients) = (
        build("adasum", {"combine": kind}, virtual(OPTIMIZERS["sgd"], 1)[0].learner)
        for kind in ("deltas", "gradients")
    )
    with pytest.raises(InputError, match="saved with combine: deltas, not gradients"):
        gradients.load_state_dict(deltas.state_dict())
