"""The module runs one training of virtual learners, which is a cell of a sweep."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from convergence import digits, single_digits
from convergence.second_moments import CorrectedAdam
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from espnet_distopt.simulation.study.problem import Problem

WARM_UP = 0.2
DROP = (0.6, 0.1)
CLIP = 5.0
ABOUT = (
    f"Gradients clipped to norm {CLIP:g} before each optimizer's step; learning rate: "
    f"linear warm-up over {WARM_UP:.0%} of the steps, {DROP[1]:g} of it after "
    f"{DROP[0]:.0%}"
)
_RULES = f"{WARM_UP} {DROP} {CLIP}"
PAIRS = f"{digits.KIND} {digits.MODEL} {_RULES}"
SINGLES = f"{single_digits.KEY} {_RULES}"
_PROBLEMS: dict[str, Callable[[int], Problem]] = {
    PAIRS: digits.problem,
    SINGLES: single_digits.problem,
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training to run.

    Attributes:
        algorithm: the name of the algorithm.
        learners: the number of virtual learners.
        batch: the number of samples of a learner's step.
        samples: the number of samples of all learners in the whole training.
        lr: the learning rate.
        seed: the seed of the problem, the simulation and the durations of steps.
        optim: `sgd`, which has momentum 0.9, `adam`, or `adam, ` with the name of a
            rule of `second_moments`, which corrects its second moment.
        options: (name, value) of the algorithm's options.
        problem: PAIRS or SINGLES. The text contains all else that the result depends
            on, so that a change of the problem makes another cell.
    """

    algorithm: str
    learners: int
    batch: int
    samples: int
    lr: float
    seed: int
    optim: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()
    problem: str = PAIRS

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


def train(cell: Training) -> dict[str, float | None]:
    """Run a training, and return its figures.

    Returns:
        held_out: the held-out loss of the consensus model at the end.
        trained: the loss in training, averaged over the last tenth of the steps.
        distance: ||x_i - mean|| / ||mean|| at the end, averaged over the learners i.
        seconds: the seconds of the processor.
        The first three are None if the training diverged.
    """
    began = time.process_time()
    problem = _PROBLEMS[cell.problem](cell.seed)
    problem.batch_size = cell.batch
    learners = [_learner(cell, problem, rank) for rank in range(cell.learners)]
    compute = Compute(seconds=1, spread=0.2, seed=cell.seed)
    simulation = Simulation(learners, compute, seed=cell.seed)
    held_out = trained = distance = None
    try:
        simulation.start()
        simulation.epoch(cell.steps)
        model, _ = problem.replica(0, 1)
        mean = simulation.consensus()
        distance = sum(float((v.learner.params - mean).norm()) for v in learners)
        distance /= cell.learners * float(mean.norm())
        nn.utils.vector_to_parameters(mean, model.parameters())
        held_out = _finite(problem.held_out_loss(model))
        last = [s.loss for s in simulation.record if s.step > 0.9 * cell.steps]
        trained = sum(last) / len(last)
    except FloatingPointError:
        pass
    return {
        "held_out": held_out,
        "trained": trained,
        "distance": distance,
        "seconds": round(time.process_time() - began, 1),
    }


def _learner(cell: Training, problem: Problem, rank: int) -> VirtualLearner:
    model, gradient = problem.replica(rank, cell.learners)
    parameters = list(model.parameters())
    optimizer = _optimizer(cell, parameters)
    optimizer.register_step_pre_hook(lambda *_: _clip(parameters))
    schedule = LambdaLR(optimizer, lambda step: _factor(step / cell.steps))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return VirtualLearner(
        model,
        optimizer,
        lambda step: _finite(gradient(step)),
        cell.algorithm,
        rank,
        cell.learners,
        **dict(cell.options),
    )


def _optimizer(cell: Training, parameters: list[nn.Parameter]) -> Optimizer:
    if cell.optim == "sgd":
        return SGD(parameters, cell.lr, momentum=0.9)
    if cell.optim == "adam":
        return Adam(parameters, cell.lr)
    rule = cell.optim.removeprefix("adam, ")
    return CorrectedAdam(parameters, cell.lr, rule, cell.learners)


def _clip(parameters: list[nn.Parameter]) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, CLIP)


def _factor(done: float) -> float:
    """Return the factor on the learning rate after the share `done` of the steps."""
    after, drop = DROP
    return min(1.0, (done + 0.01) / WARM_UP) * (drop if done >= after else 1.0)


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError
    return loss
