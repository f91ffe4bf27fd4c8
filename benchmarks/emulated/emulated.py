"""A replica whose computing is emulated: layers that sleep, and gradients at no cost.

Several learners on a few cores then take as long for a step as if each had a machine of
its own, and what is left is the communication. Backward goes layer by layer, so that
whoever communicates during it can. The optimizer's step is real.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 8
FORWARD_SHARE = 1 / 3
"""Of a step's seconds; backward takes twice as long as forward."""


class _Layer(torch.autograd.Function):
    """Passes its input on; its backward takes `seconds`, and finds `gradient`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, seconds: float
    ) -> Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.seconds)
        # A new view of the same memory: autograd takes it over and copies nothing.
        return upstream[0], ctx.gradient.view_as(ctx.gradient), None, None


class Emulated(nn.Module):
    """A model of `parameters` parameters in `LAYERS` layers, whose output is its loss.

    Args:
        parameters: how many; a multiple of `LAYERS`, or a little less are made.
        seconds: that forward and backward take together.
        rank: of the learner; gradients differ between learners.
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
        """Return a scalar; `x` () is any, and requires a gradient."""
        time.sleep(self._forward_seconds)
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            x = _Layer.apply(x, weight, gradient, self._backward_seconds)
        return x


def batch() -> Tensor:
    """Return an input of the model."""
    return torch.zeros((), requires_grad=True)
