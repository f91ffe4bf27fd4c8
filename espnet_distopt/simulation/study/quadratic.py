"""The module has the simulation's built-in problem: a noisy quadratic.

It is cheap, and its optimum is known exactly:

    f(x) = 1/2 sum_i h_i (x_i - x*_i)^2      h_i from 1 to 1/condition, in equal ratios
    g(x) = h (x - x*) + noise / sqrt(batch_size) * z,  z standard normal

All learners descend the same f; only the noise of their batches differs. The gradient g
is linear in x. Therefore, where replicas make steps of plain SGD and average with each
other, their mean moves exactly as in synchronous SGD. Such algorithms differ here in
time and in consensus distance, but not in the loss; only a real model can tell how well
they train.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.virtual_learner import Gradient

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
