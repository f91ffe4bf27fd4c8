"""Problems: the model that a simulation trains, and its data.

Beside users' models there are two: a noisy quadratic, whose optimum is known exactly,
and one for simulations that ask for time alone.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.virtual_learner import Gradient

Kind = TypeVar("Kind", bound=Optimizer)


class Problem(Protocol):
    """A model with its data, for any number of virtual learners.

    Attributes:
        batch_size: the number of samples of one learner's step; with N learners the
            total batch has N times as many. A trial sets it before it asks for
            replicas.
        samples: the number of samples of an epoch, which is one pass over the training
            data.
    """

    batch_size: int
    samples: int

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's own model, and the function that computes its gradients.

        All learners' models start with equal parameters. A gradient is that of one
        batch of `batch_size` samples. It depends only on the model's parameters, the
        learner, the number of the step, and torch's random numbers; different learners
        have different batches.
        """
        ...

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the loss of `model` on data that no learner trains on."""
        ...

    def describe(self) -> str:
        """Return one phrase for captions, with all figures that define the problem."""
        ...


PARTS = 4
"""The tensors of the model. Gradients can so travel in several buckets, as a real
model's do."""


class Vector(nn.Module):
    """A model whose parameters are the parts of a vector of shape (dimension,)."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        parts = x.clone().tensor_split(min(PARTS, len(x)))
        self.parts = nn.ParameterList(part.clone() for part in parts)

    @property
    def x(self) -> Tensor:
        """The vector."""
        return torch.cat(list(self.parts))


@dataclass(kw_only=True)
class Quadratic:
    """The noisy quadratic, a `Problem` in float64.

        f(x) = 1/2 sum_i h_i (x_i - x*_i)^2      h_i from 1 to 1/condition
        g(x) = h (x - x*) + noise / sqrt(batch_size) * z,  z standard normal

    The h_i are in equal ratios. All learners descend the same f; only the noise of
    their batches differs. The gradient g is linear in x. Therefore, where replicas make
    steps of plain SGD and average with each other, their mean moves exactly as in
    synchronous SGD. Such algorithms differ here in time and in consensus distance, but
    not in the loss; only a real model can tell how well they train.

    Attributes:
        dimension: the number of parameters.
        condition: the ratio of the largest curvature, which is 1, to the smallest.
        noise: the standard deviation of one sample's gradient, in each element.
        seed: the seed of the optimum and the starting point, which are standard normal.
        batch_size: the number of samples of one learner's step.
        samples: the number of samples of an epoch.

    Raises:
        InputError: a figure is out of its range.
    """

    dimension: int = 256
    condition: float = 100.0
    noise: float = 1.0
    seed: int = 0
    batch_size: int = 16
    samples: int = 7680

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise InputError(f"the dimension must be >= 1, not {self.dimension}")
        if not 1 <= self.condition < float("inf"):
            raise InputError(f"the condition must be >= 1, not {self.condition}")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"the noise must be >= 0, not {self.noise}")
        source = torch.Generator().manual_seed(self.seed)
        shape = (2, self.dimension)
        points = torch.randn(shape, dtype=torch.float64, generator=source)
        self._optimum, self._start = points
        powers = torch.linspace(0, -1, self.dimension, dtype=torch.float64)
        self._curvature = self.condition**powers

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's model, and the function that computes its gradients."""
        model = Vector(self._start)
        noise = self.noise / self.batch_size**0.5

        def gradient(_: int) -> float:
            x = model.x
            loss = self._loss(x)
            (loss + noise * (x @ torch.randn_like(x))).backward()
            return float(loss.detach())

        return model, gradient

    def _loss(self, x: Tensor) -> Tensor:
        loss: Tensor = (self._curvature * (x - self._optimum).square()).sum() / 2
        return loss

    def held_out_loss(self, model: nn.Module) -> float:
        """Return f at the model's parameters; it has no noise."""
        with torch.no_grad():
            return float(self._loss(torch.cat(list(model.parameters()))))

    def describe(self) -> str:
        """Return one phrase with the problem's figures, for captions."""
        return (
            f"noisy quadratic of {self.dimension} dimensions, condition "
            f"{self.condition:g}, noise {self.noise:g} a sample, seed {self.seed}"
        )


DIMENSION = 4000
"""The parameters of the stand-in. The few elements that some algorithms add to a
message, such as a learner's samples, count as a part of the model as large."""

TENSORS = 4
"""The tensors of the stand-in. So gradients travel in at most four buckets; those of a
real model of more than 100 MB are more, and the first one begins a little earlier."""


class StandIn(nn.Module):
    """A model of `DIMENSION` parameters or a few less, which are zero."""

    def __init__(self, tensors: int = TENSORS) -> None:
        super().__init__()
        each = torch.zeros(max(1, DIMENSION // tensors))
        self.x = nn.ParameterList(each.clone() for _ in range(tensors))


def without_steps(kind: type[Kind]) -> type[Kind]:
    """Return a class as `kind` whose steps do nothing, as there are no gradients.

    Those of `kind` would do nothing either. But torch imports its compiler when an
    optimizer is made and when it steps, to keep the compiler away from them, and that
    takes longer than the simulation of a method.
    """

    def step(self: Optimizer, closure: Any = None) -> None:
        """Do nothing but what the hooks of a step do."""

    # It stands for the step of `kind`, by which corrections know an optimizer.
    step.__wrapped__ = kind.step  # type: ignore[attr-defined]
    add_param_group = inspect.unwrap(kind.add_param_group)
    return type(
        kind.__name__, (kind,), {"step": step, "add_param_group": add_param_group}
    )


@dataclass(kw_only=True)
class TimeOnly:
    """A `Problem` whose steps take virtual time and do nothing.

    Messages have the bytes of a model of any size (`Trial.model_bytes`), while its few
    parameters are what they carry.

    Attributes:
        batch_size: the number of samples of one learner's step.
        samples: the number of samples of an epoch.
        tensors: the number of tensors of the stand-in.
    """

    batch_size: int = 16
    samples: int = 7680
    tensors: int = TENSORS

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a stand-in for a learner's model, which has no gradient."""
        return StandIn(self.tensors), None

    def held_out_loss(self, model: nn.Module) -> float:
        """Return 0, because nothing is learnt."""
        return 0.0

    def describe(self) -> str:
        """Return one phrase for captions."""
        return "none, because only time is simulated"
