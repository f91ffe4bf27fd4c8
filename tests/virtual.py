"""Virtual learners of a model that is one vector, for tests of the simulation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lockstep import Point
from torch import nn
from torch.optim import SGD

from espnet_distopt.drivers.simulation import VirtualLearner


def pull(model: Point, target: float) -> Callable[[int], float]:
    """Gradient of a quadratic about `target`, whatever the step."""

    def gradient(_: int) -> float:
        loss = (model.x - target).square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


def noisy(model: Point) -> Callable[[int], float]:
    def gradient(_: int) -> float:
        loss = (model.x * torch.randn_like(model.x)).sum()
        loss.backward()
        return float(loss.detach())

    return gradient


def along(model: Point, gradients: Sequence[float]) -> Callable[[int], float]:
    """Given gradients, one a step."""

    def gradient(step: int) -> float:
        loss = (model.x * gradients[step]).sum()
        loss.backward()
        return float(loss.detach())

    return gradient


def points(
    name: str,
    size: int,
    gradient: Callable[[Point, int], Callable[[int], float]],
    make: Any = SGD,
    **options: Any,
) -> list[VirtualLearner]:
    learners = []
    for rank in range(size):
        model = Point([0.25, -0.5])
        learners.append(
            VirtualLearner(
                model,
                make(model.parameters(), lr=0.1),
                gradient(model, rank),
                name,
                rank,
                size,
                **options,
            )
        )
    return learners


def towards_rank(model: Point, rank: int) -> Callable[[int], float]:
    return pull(model, float(rank))


def place(learners: Sequence[VirtualLearner], starts: Sequence[float]) -> None:
    """Begin at different points, without steps from there on."""
    for virtual, x in zip(learners, starts, strict=True):
        virtual.optimizer.param_groups[0]["lr"] = 0.0
        virtual.learner.params.fill_(x)
        published(virtual).publish()


def published(virtual: VirtualLearner) -> Any:
    algorithm: Any = virtual.algorithm
    return algorithm.published


def x(virtual: VirtualLearner) -> list[float]:
    values: list[float] = virtual.learner.params.tolist()
    return values


def drop(model: Point) -> Callable[[int], float]:
    def gradient(_: int) -> float:
        loss = nn.functional.dropout(model.x.expand(8, 2)).sum()
        loss.backward()
        return float(loss.detach())

    return gradient
