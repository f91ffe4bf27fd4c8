"""The module has a model whose computing is emulated: its layers sleep.

So several learners on a few cores take as long for a step as if each had a machine of
its own, and a benchmark measures their communication. Gradients cost nothing, but the
optimizer's step is real. The backward pass goes layer by layer, so a method can
communicate during it.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 8
FORWARD_SHARE = 1 / 3
"""The share of the forward pass in a step; the backward pass takes twice as long."""


class _Layer(torch.autograd.Function):
    """A layer that returns its input; its backward pass sleeps and has one gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, seconds: float
    ) -> Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.seconds)
        # Autograd takes a new view of the gradient over, and does not copy it.
        return upstream[0], ctx.gradient.view_as(ctx.gradient), None, None


class Emulated(nn.Module):
    """A model in `LAYERS` layers whose output is its loss.

    Args:
        parameters: the number of parameters; it is rounded down to a multiple of
            `LAYERS`.
        seconds: the seconds that a forward and a backward pass take together.
        rank: the learner, which is the seed of its gradients.
    """

    def __init__(self, parameters: int, seconds: float, rank: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(rank)
        size = parameters // LAYERS
        start = torch.full((size,), 1.0)
        self.weights = nn.ParameterList(start.clone() for _ in range(LAYERS))
        self._gradients = [torch.randn(size, generator=source) for _ in range(LAYERS)]
        self._forward_seconds = seconds * FORWARD_SHARE
        self._backward_seconds = seconds * (1 - FORWARD_SHARE) / LAYERS

    def forward(self, x: Tensor) -> Tensor:
        """Return the input `x`, of shape (), which must require a gradient."""
        time.sleep(self._forward_seconds)
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            x = _Layer.apply(x, weight, gradient, self._backward_seconds)
        return x


def batch() -> Tensor:
    """Return an input of the model, of shape ()."""
    return torch.zeros((), requires_grad=True)
