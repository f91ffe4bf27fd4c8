"""The module runs one training of virtual learners, which is a cell of a sweep."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from arithmetic import versions
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from convergence.stream_problems import StreamProblem
from espnet_distopt.optimizers.lamb import Lamb
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from espnet_distopt.simulation.virtual_learner import Gradient

CLIP = 5.0
NO_CLIP = 1e9
"""A norm to which no gradient is clipped."""
WARM_UP = 0.1


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training to run.

    Its rate is constant after a linear warm-up over a tenth of the steps.

    A new option has a default that means what trainings did before, and no default ever
    changes: keys leave out what has its default.

    Attributes:
        algorithm: the name of the algorithm.
        learners: the number of virtual learners.
        batch: the number of samples of a learner's step.
        samples: the number of samples of all learners in the whole training.
        lr: the learning rate.
        seed: the seed of the problem, the simulation and the durations of steps.
        optim: `sgd`, which has momentum `beta1`; `adam`; or `lamb`.
        options: (name, value) of the algorithm's options.
        problem: the name of one of `stream_problems.TASKS`.
        beta1: the momentum of SGD, and the first of the betas of Adam and LAMB.
        clip: the norm to which a learner's gradient is clipped before its optimizer's
            step.
    """

    algorithm: str
    learners: int
    batch: int
    samples: int
    lr: float
    seed: int
    problem: str
    optim: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()
    beta1: float = 0.9
    clip: float = CLIP

    def __str__(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options)
        return (
            f"{self.algorithm}{options}, {self.learners} x {self.batch}, "
            f"{self.optim} {self.lr:.3g}, seed {self.seed}"
        )

    @property
    def steps(self) -> int:
        """The number of steps of each learner."""
        return self.samples // (self.learners * self.batch)

    def key(self) -> dict[str, Any]:
        """Return all that the result depends on, without what has its default."""
        defaults = {field.name: field.default for field in fields(self)}
        key = {k: v for k, v in asdict(self).items() if v != defaults[k]}
        arithmetic = versions(self.algorithm, self.options, self.optim)
        return key | ({"arithmetic": arithmetic} if arithmetic else {})


def as_one_learner(cell: Training) -> Training:
    """Return the training of one learner that equals an all-reduce, to rounding.

    The learners of an all-reduce make the steps of one learner with all their samples.
    So one replica is enough, and the training takes a fraction of the time.
    """
    if cell.algorithm != "allreduce":
        return cell
    return replace(cell, learners=1, batch=cell.learners * cell.batch)


def simulate(cell: Training, problem: StreamProblem) -> dict[str, float | None]:
    """Run a training with every learner that it names, and return its figures.

    Args:
        cell: the training.
        problem: the problem that `cell` names.

    Returns:
        held_out: the held-out loss of the consensus model at the end.
        trained: the loss in training, averaged over the last tenth of the steps.
        distance: ||x_i - mean|| / ||mean|| at the end, averaged over the learners i.
        All are None if the training diverged.
    """
    problem.batch_size = cell.batch
    replicas = [problem.replica(r, cell.learners) for r in range(cell.learners)]
    learners = [learner_of(cell, *both, rank) for rank, both in enumerate(replicas)]
    compute = Compute(seconds=1, spread=0.2, seed=cell.seed)
    simulation = Simulation(learners, compute, seed=cell.seed)
    try:
        simulation.start()
        simulation.epoch(cell.steps)
        model, _ = problem.replica(0, 1)
        mean = simulation.consensus()
        distance = sum(float((v.learner.params - mean).norm()) for v in learners)
        nn.utils.vector_to_parameters(mean, model.parameters())
        held_out = _finite(problem.held_out_loss(model))
        last = [s.loss for s in simulation.record if s.step > 0.9 * cell.steps]
    except FloatingPointError:
        return {"held_out": None, "trained": None, "distance": None}
    return {
        "held_out": held_out,
        "trained": sum(last) / len(last),
        "distance": distance / (cell.learners * float(mean.norm())),
    }


def learner_of(
    cell: Training, model: nn.Module, gradient: Gradient, rank: int
) -> VirtualLearner:
    """Return a learner of a training, with its optimizer, clipping and schedule.

    Args:
        cell: the training.
        model: the learner's replica.
        gradient: the function that computes the gradient of a step.
        rank: the learner's rank.
    """
    parameters = list(model.parameters())
    optimizer = _optimizer(cell, parameters)
    optimizer.register_step_pre_hook(lambda *_: _clip(parameters, cell.clip))
    virtual = VirtualLearner(
        model,
        optimizer,
        lambda step: _finite(gradient(step)),  # type: ignore[misc]
        cell.algorithm,
        rank,
        cell.learners,
        **dict(cell.options),
    )
    # The schedule steps when the algorithm has seen the rate of the update (SlowMo).
    schedule = LambdaLR(optimizer, lambda step: factor(step / cell.steps))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return virtual


def _optimizer(cell: Training, parameters: list[nn.Parameter]) -> Optimizer:
    if cell.optim == "sgd":
        return SGD(parameters, cell.lr, momentum=cell.beta1)
    kinds: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "lamb": Lamb}
    return kinds[cell.optim](parameters, cell.lr, betas=(cell.beta1, 0.999))


def _clip(parameters: list[nn.Parameter], norm: float) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, norm)


def factor(done: float) -> float:
    """Return the factor on the learning rate after the share `done` of the steps."""
    return min(1.0, (done + 0.01) / WARM_UP)


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError
    return loss
