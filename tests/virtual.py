"""Virtual learners of a model that is one vector, for tests of the simulation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.algorithms import Algorithm
from espnet_distopt.core.effects import Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.simulation import Simulation, VirtualLearner
from tests.replicas import Point

NEEDED: dict[str, dict[str, Any]] = {"hadpsgd": {"per_node": 2}}
"""Options without which an algorithm does not run on several learners."""

STEPS_ALONE = {"slowmo", "diloco", "d1d_grad"}
"""One learner of these is not the plain optimizer: outer momentum, a late gradient."""


class Stops:
    """Records where learners propose to stop; `look` is a check of a simulation.

    Attributes:
        proposals: each proposal, with the most steps that a learner had made by then.
        free: the numbers of steps after which no late average was under way.
    """

    def __init__(self) -> None:
        self.proposals: list[tuple[int, int]] = []
        self.free = {0}
        self._most = 0

    def look(self, learners: list[VirtualLearner], simulation: Simulation) -> None:
        last = simulation.engine.last
        if last is None or not simulation.engine.in_epoch:
            return
        self._most = max(self._most, *(v.learner.steps for v in learners))
        virtual = learners[last.rank]
        algorithm: Any = virtual.algorithm
        if type(last.effect).__name__ != "Stepped":
            return
        if not algorithm._late.under_way:
            self.free.add(virtual.learner.steps)
        self.proposals.append((algorithm.next_stop(virtual.learner), self._most))


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
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


def along(model: Point, gradients: Sequence[float]) -> Callable[[int], float]:
    """Given gradients, one a step."""

    def gradient(step: int) -> float:
        loss = (model.x * gradients[step]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


def along_each(
    of: Callable[[int, int], Tensor | float],
) -> Callable[[Any, int], Any]:
    """Gradients `of(rank, step)`, which do not depend on the parameters."""

    def gradient(model: Point, rank: int) -> Callable[[int], float]:
        def descend(step: int) -> float:
            (model.x * of(rank, step)).sum().backward()  # type: ignore[no-untyped-call]
            return 0.0

        return descend

    return gradient


def drawn(seed: int, *shape: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def bowls(
    *shapes: tuple[float, float],
) -> Callable[[Point, int], Callable[[int], float]]:
    """Gradients of a quadratic for each learner: its curvature, and its bottom."""

    def gradient(model: Point, rank: int) -> Callable[[int], float]:
        curvature, bottom = shapes[rank]

        def descend(_: int) -> float:
            loss = curvature * (model.x - bottom).square().sum() / 2
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        return descend

    return gradient


def points(
    name: str,
    size: int,
    gradient: Callable[[Point, int], Callable[[int], float]],
    make: Any = SGD,
    at: Sequence[float] = (0.25, -0.5),
    **options: Any,
) -> list[VirtualLearner]:
    """Learners at one point; `make` has a learning rate of 0.1 unless it says so."""
    options = (NEEDED.get(name, {}) if size > 1 else {}) | options
    if "lr" not in getattr(make, "keywords", {}):
        make = partial(make, lr=0.1)
    learners = []
    for rank in range(size):
        model = Point(at)
        made, descend = make(model.parameters()), gradient(model, rank)
        learners.append(
            VirtualLearner(model, made, descend, name, rank, size, **options)
        )
    return learners


def started(learners: Sequence[VirtualLearner], *parts: Any, **more: Any) -> Simulation:
    simulation = Simulation(learners, *parts, **more)
    simulation.start()
    return simulation


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
    return algorithm.snapshot


def x(virtual: VirtualLearner) -> list[float]:
    values: list[float] = virtual.learner.params.tolist()
    return values


def drop(model: Point) -> Callable[[int], float]:
    def gradient(_: int) -> float:
        loss = nn.functional.dropout(model.x.expand(8, 2)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


class Toy(Algorithm):
    """Runs given programs in after_step and in gossip."""

    def __init__(
        self,
        after_step: Callable[[Learner], Program] | None = None,
        gossip: Callable[[Learner], Program] | None = None,
    ) -> None:
        self.wants_gossip = gossip is not None
        self._programs = after_step, gossip

    def after_step(self, learner: Learner) -> Program:
        if self._programs[0] is not None:
            yield from self._programs[0](learner)

    def gossip(self, learner: Learner) -> Program:
        if self._programs[1] is not None:
            yield from self._programs[1](learner)


def toys(size: int, **programs: Callable[[Learner], Program]) -> Simulation:
    """Learners whose algorithm is made of given programs."""
    learners = points("bmuf", size, towards_rank)
    for virtual in learners:
        virtual.algorithm = Toy(**programs)
    return Simulation(learners)
