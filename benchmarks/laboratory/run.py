"""The module runs trainings in the laboratory, several side by side.

A training is that of `convergence.training`, and its figures are those that the
simulation would give, to rounding.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from convergence import stream_problems
from convergence.stream_problems import FRAMES, HIDDEN, MELS, WIDE
from convergence.training import Training, as_one_learner, factor, simulate
from torch import Tensor

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.algorithms.block.options import BlockConfig
from espnet_distopt.core.mixing import Topology
from espnet_distopt.core.topology import LONGEST_RING
from laboratory import methods
from laboratory.learners import Adam, Lamb, Learners, Optimizer, Problem, Sgd
from laboratory.problems import Perceptron, Streamed
from laboratory.schedules import Event, record, waves

GOSSIP = ("adpsgd", "hadpsgd")
ONE_REPLICA = ("allreduce", "d1d_grad")
Schedule = Callable[[Training], Sequence[Event]]


def recorded(cell: Training) -> Sequence[Event]:
    """Return the events of a training by gossip, as the simulation has them."""
    return record(cell.algorithm, cell.learners, cell.steps, cell.seed, cell.options)


MODELS = {
    "digits": Perceptron(FRAMES * MELS, HIDDEN, 10),
    "deep digits": Perceptron(FRAMES * MELS, WIDE, WIDE, 10),
}
"""Problem -> its model, batched."""

SIMULATED = {"fragments": 1, "delay": 0, "combine": "deltas"}
"""Options of algorithms that only the simulation has, with the values without them."""

AT_ONCE = 64
"""The replicas that trainings side by side have at most, if they are several."""

MOST = 8
"""The trainings side by side, each of which keeps some samples in memory."""


def computes(cell: Training) -> bool:
    """Return whether the laboratory has all that a training needs."""
    options = dict(cell.options)
    plain = all(options.get(n, value) == value for n, value in SIMULATED.items())
    in_nodes = cell.algorithm != "hadpsgd" and options.get("per_node", 1) > 1
    return cell.problem in MODELS and plain and not in_nodes


def together(cells: list[Training]) -> list[list[Training]]:
    """Return the trainings that run side by side: they differ in rate and seed.

    The largest groups come first, so that several workers end at about the same time.
    """
    groups: dict[Training, list[Training]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, lr=0.0, seed=0), []).append(cell)
    found = []
    for kind, group in groups.items():
        size = 1 if kind.algorithm in ONE_REPLICA else kind.learners
        each = max(1, min(MOST, AT_ONCE // size)) if computes(kind) else 1
        found += [group[n : n + each] for n in range(0, len(group), each)]
    return sorted(found, key=lambda group: -sum(cell.samples for cell in group))


def compute(cells: list[Training]) -> list[dict[str, float | None]]:
    """Run trainings that `together` has put together, and return their figures.

    They are those of `convergence.training.simulate`, and `seconds`: those of the
    processor.
    """
    began, cell = time.process_time(), cells[0]
    stream = functools.partial(stream_problems.problem, cell.problem)
    if computes(cell):
        problem = Streamed(MODELS[cell.problem], stream)
        consensus, learners = train_models(cells, problem)
        figures = _figures(learners, consensus)
    else:
        figures = [simulate(as_one_learner(c), stream(c.seed)) for c in cells]
    seconds = round((time.process_time() - began) / len(cells), 2)
    return [each | {"seconds": seconds} for each in figures]


def train_models(
    cells: Sequence[Training], problem: Problem, schedule: Schedule = recorded
) -> tuple[Tensor, Learners]:
    """Run trainings side by side; return their consensus models (T, P) and replicas.

    Args:
        cells: the trainings; they differ in their rates and seeds only.
        problem: the problem that they name.
        schedule: function that returns the events of a training by gossip.
    """
    cell = cells[0]
    config: Any = ALGORITHMS[cell.algorithm].config(**dict(cell.options))
    merged = cell.learners if cell.algorithm in ONE_REPLICA else 1
    if cell.algorithm == "hadpsgd":
        merged = config.per_node
    size = cell.learners // merged
    consistent = getattr(config, "second_moment", "local") == "consistent"
    sizes = [math.prod(shape) for shape in problem.shapes]
    factors = [factor(step / cell.steps) for step in range(cell.steps)]
    learners = Learners(
        problem=problem,
        seeds=[each.seed for each in cells],
        size=size,
        batch=cell.batch * merged,
        steps=cell.steps,
        schedule=torch.tensor(factors, dtype=torch.float64),
        lr=torch.tensor([each.lr for each in cells], dtype=torch.float64),
        clip=cell.clip,
        optimizer_of=lambda x: _optimizer(cell, x, size if consistent else 1, sizes),
    )
    if cell.algorithm in GOSSIP:
        found = waves([schedule(each) for each in cells], size)
        return methods.adpsgd(learners, found), learners
    return _lockstep(cell.algorithm, config, learners), learners


def _optimizer(cell: Training, x: Tensor, batches: int, sizes: list[int]) -> Optimizer:
    match cell.optim:
        case "sgd":
            return Sgd(x, cell.beta1)
        case "adam":
            return Adam(x, (cell.beta1, 0.999), batches)
        case _:
            return Lamb(x, (cell.beta1, 0.999), sizes)


def _lockstep(algorithm: str, config: Any, learners: Learners) -> Tensor:
    """Train with a method whose learners all step at once."""
    size = learners.size
    match algorithm:
        case "allreduce":
            return methods.all_reduce(learners)
        case "d1d_grad":
            return methods.late_gradients(learners)
        case "d1d_model":
            return methods.dpsgd(learners, methods.Mixing("complete", size))
        case "dpsgd":
            short = size <= LONGEST_RING
            topology: Topology = config.topology or (
                "ring" if short else "randomized_ring"
            )
            per_node = config.per_node or 1
            mixing = methods.Mixing(topology, size, config.seed, per_node)
            return methods.dpsgd(learners, mixing)
        case "adasum":
            return methods.adasum(learners, config.period)
        case _:
            assert isinstance(config, BlockConfig)
            return methods.Blocks(learners, config).train()


def _figures(learners: Learners, consensus: Tensor) -> list[dict[str, float | None]]:
    problem = learners.problem
    held_out = problem.held_out_loss(consensus).double().cpu()
    x = learners.by_training(learners.x)
    distances = (x - consensus[:, None]).norm(dim=2).mean(1) / consensus.norm(dim=1)
    counted = sum(step + 1 > 0.9 * learners.steps for step in range(learners.steps))
    trained = learners.by_training(learners.last_losses).mean(1) / counted
    finite = learners.by_training(learners.losses).sum(1).isfinite()
    finite &= held_out.isfinite()
    columns = {"held_out": held_out, "trained": trained, "distance": distances}
    return [
        {
            name: float(values[t]) if finite[t] else None
            for name, values in columns.items()
        }
        for t in range(learners.trainings)
    ]
