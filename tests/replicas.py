"""Replicas of a model that is one vector, and their programs run in one process."""

import copy
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.algorithms import ALGORITHMS, Algorithm, build
from espnet_distopt.algorithms.block.bmuf import Bmuf
from espnet_distopt.algorithms.block.filter import BlockFilter
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core.effects import Effect, Program, RunInBackground
from espnet_distopt.core.learner import Learner
from espnet_distopt.simulation.engine import Engine
from espnet_distopt.simulation.network import Network


class Point(nn.Module):
    """A model that is one vector."""

    def __init__(self, x: Sequence[float], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x, dtype=dtype))


def filter_of(algorithm: Algorithm) -> BlockFilter:
    """The filter of blocks, where the whole model is one fragment."""
    assert isinstance(algorithm, Bmuf)
    (fragment,) = algorithm.fragments
    return fragment.filter


@dataclass
class Replica:
    """One learner with all that belongs to it.

    Its block momentum is there from the first block, unless `warmup` says otherwise:
    the vectors of docs/algorithms/block.md are those of constant momentum.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learner: Learner
    algorithm: Algorithm

    @classmethod
    def of(
        cls,
        name: str,
        model: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        rank: int = 0,
        size: int = 1,
        **options: Any,
    ) -> "Replica":
        if "warmup" in ALGORITHMS[name].config.__dataclass_fields__:
            options = {"warmup": 0, **options}
        made = optimizer(model.parameters())
        learner = Learner(model, made, rank, size)
        algorithm = build(name, options, learner)
        if algorithm.wants_gradients:
            learner.watch_backward(lambda: None)
        return cls(model, made, learner, algorithm)

    @property
    def x(self) -> list[float]:
        values: list[float] = self.learner.params.tolist()
        return values

    def descend(self, gradient: Sequence[float] | float) -> None:
        """Take one optimizer step along a given gradient."""
        like = self.learner.params
        flat = torch.as_tensor(gradient, dtype=like.dtype).expand_as(like)
        for parameter, slot in zip(
            self.learner.parameters, self.learner.slots, strict=True
        ):
            parameter.grad = slot.of(flat.clone())
        self.optimizer.step()

    def step(self, gradient: Sequence[float] | float | None) -> Program:
        """One attempted step; None skips the update, as a NaN would."""
        if gradient is not None:
            self.descend(gradient)
        self.learner.steps += 1
        yield from self.algorithm.after_step(self.learner)

    def epoch(self, gradients: Iterable[Sequence[float] | float | None]) -> Program:
        """Steps along given gradients, and the end of the epoch."""
        for gradient in gradients:
            yield from self.step(gradient)
        yield from self.algorithm.finish(self.learner)


def several(
    name: str,
    model: Callable[[], nn.Module],
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    size: int,
    **options: Any,
) -> list[Replica]:
    """Started learners, each of which has its own model and optimizer."""
    ranks = range(size)
    found = [Replica.of(name, model(), make, rank, size, **options) for rank in ranks]
    run(*(r.algorithm.start(r.learner) for r in found))
    return found


def run(*programs: Generator[Effect, Any, Any]) -> list[Any]:
    """Run programs of the training side to their ends; returns their values.

    One program stands for one learner, or for any number of identical ones, whose mean
    changes nothing.
    """
    learners: Any = [
        SimpleNamespace(learner=SimpleNamespace(rank=rank), bytes_sent=0)
        for rank in range(len(programs))
    ]
    engine = Engine(
        learners,
        Network(),
        lambda step: None,
    )
    return engine.run(programs, lambda: None, in_epoch=False)


def aside(program: Generator[RunInBackground, Any, Any]) -> Any:
    """Run a program of the gossip side that needs nobody; returns its value."""
    while True:
        try:
            effect = next(program)
        except StopIteration as stop:
            return stop.value
        assert isinstance(effect, RunInBackground), effect
        effect.work()


def correct(snapshot: Snapshot, received: Tensor) -> None:
    """Bring what a peer has sent."""
    aside(snapshot.end_exchange(snapshot.spare().copy_(received)))  # type: ignore[arg-type]


def saved(replica: Replica) -> dict[str, Any]:
    """A copy of what a checkpoint holds of a learner."""
    state = {
        "learner": replica.learner.state_dict(),
        "optimizer": replica.optimizer.state_dict(),
        "algorithm": replica.algorithm.state_dict(),
    }
    return copy.deepcopy(state)


def load(replica: Replica, state: dict[str, Any]) -> None:
    """Restore what `saved` has returned, which stays as it is."""
    replica.learner.load_state_dict(state["learner"])
    replica.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    replica.algorithm.load_state_dict(state["algorithm"])


def end(replicas: Sequence[Replica]) -> None:
    """Run the end of an epoch of learners whose gossip has ended."""
    run(*(r.algorithm.finish(r.learner) for r in replicas))
