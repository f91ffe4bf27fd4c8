"""LAMB (You et al., ICLR 2020, arXiv 1904.00962): Adam scaled for each tensor.

    m <- b1 m + (1 - b1) g              v <- b2 v + (1 - b2) g^2
    r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay x
    x <- x - lr |x| / |r| r

    x     one parameter tensor                  g     its gradient
    m, v  its first and second moment           t     its number of updates

The norms |x| and |r| are those of one parameter tensor. If one of them is zero, the
ratio |x| / |r| is 1.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from espnet_distopt.errors import InputError


class Lamb(Optimizer):
    """LAMB as published, with bias correction and without a bound on |x|.

    Args:
        params: the parameters, or groups of them.
        lr: learning rate, the share of its own length that a tensor moves in a step.
        betas: decay rates (b1, b2) of the moments, each in [0, 1).
        eps: the number that is added to the root of the second moment.
        weight_decay: weight decay, which the ratio scales as well, as published.

    Raises:
        InputError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= lr < math.inf:
            raise InputError(f"lamb: lr must be >= 0 and finite, not {lr}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"lamb: betas must be two numbers in [0, 1), not {betas}")
        if eps < 0 or weight_decay < 0:
            raise InputError(
                f"lamb: eps and weight_decay must be >= 0, not {eps}, {weight_decay}"
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Make an update, and return the loss of `closure` if it is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, x: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[x]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(x)
            state["exp_avg_sq"] = torch.zeros_like(x)
        state["step"] += 1
        (b1, b2), m, v = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        m.mul_(b1).add_(grad, alpha=1 - b1)
        v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        root = (v / (1 - b2 ** state["step"])).sqrt_().add_(group["eps"])
        r = (m / (1 - b1 ** state["step"])).div_(root)
        r.add_(x, alpha=group["weight_decay"])
        length, of_r = torch.linalg.vector_norm(x), torch.linalg.vector_norm(r)
        known = (length > 0) & (of_r > 0)
        x.sub_(r.mul_(torch.where(known, length / of_r, 1.0)), alpha=group["lr"])
