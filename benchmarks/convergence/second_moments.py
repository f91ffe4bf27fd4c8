"""The module has the ways to correct Adam's second moment that an experiment compares.

N learners average their models. Each one's gradient g = mu + noise has the variance s,
and the gradient of all batches together has s / N. A rule estimates E of the square of
the latter, vN, from the gradients of one learner. See `optimizers.consistent` of the
package for the equations of the rule `deviations`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

State = dict[str, Any]
Rule = Callable[[State, Tensor, int], Tensor]
"""A function of a parameter's state, its gradient and N. It returns vN, and keeps what
it needs in the state. The state has the number `t` of updates, `mh`, the bias-corrected
first moment, `before`, that of the step before, and `vh`, the second moment."""

B1, B2, EPS = 0.9, 0.999, 1e-8


class CorrectedAdam(Optimizer):
    """Adam, whose second moment is replaced by that of a rule.

    Args:
        parameters: the parameters.
        lr: the learning rate.
        rule: the rule, by its name in `RULES`.
        batches: the number N of batches whose mean the learners' average takes.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, rule: str, batches: int
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self._rule = RULES[rule]
        self._batches = batches

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step with the gradients that are there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                _follow(state, parameter.grad)
                vn = self._rule(state, parameter.grad, self._batches)
                step = state["mh"] / (vn.sqrt() + EPS)
                parameter.sub_(step, alpha=group["lr"])


def _follow(state: State, gradient: Tensor) -> None:
    if not state:
        zeros = torch.zeros_like(gradient)
        state.update(t=0, m=zeros, v=zeros.clone(), mh=zeros.clone())
    state["t"] += 1
    state["before"] = state["mh"]
    state["m"].lerp_(gradient, 1 - B1)
    state["v"].mul_(B2).addcmul_(gradient, gradient, value=1 - B2)
    state["mh"] = state["m"] / (1 - B1 ** state["t"])
    state["vh"] = state["v"] / (1 - B2 ** state["t"])


def _mean(state: State, name: str, value: Tensor) -> Tensor:
    """Follow a value from the second step on; return its bias-corrected mean."""
    followed: Tensor = state.setdefault(name, torch.zeros_like(value))
    if state["t"] == 1:
        return followed
    followed.lerp_(value, 1 - B2)
    mean: Tensor = followed / (1 - B2 ** (state["t"] - 1))
    return mean


def _noise(state: State, gradient: Tensor) -> Tensor:
    """Return sh, the variance of the gradient about the first moment before it."""
    t = max(state["t"] - 1, 1)
    spread = (1 - B1) / (1 + B1) * (1 + B1**t) / (1 - B1**t)
    return _mean(state, "s", (gradient - state["before"]) ** 2 / (1 + spread))


def _signal(state: State, gradient: Tensor) -> Tensor:
    """Return qh, which estimates mu^2: the noises of both factors are independent."""
    return _mean(state, "q", gradient * state["before"])


def _seen(t: int) -> float:
    """Return how many equal weights scatter as those of the moments after t steps."""
    return float((1 - B2**t) ** 2 * (1 + B2) / ((1 - B2) * (1 - B2 ** (2 * t))))


def _with_signal(state: State, signal: Tensor, batches: int) -> Tensor:
    """Return vh / N + (1 - 1/N) mu^2, with mu^2 between 0 and vh."""
    vh: Tensor = state["vh"]
    if state["t"] == 1:
        return vh
    kept = torch.minimum(signal.clamp(min=0), vh)
    return vh / batches + (1 - 1 / batches) * kept


def deviations(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return the rule of the package: max(vh - (1 - 1/N) sh, vh / N)."""
    vh: Tensor = state["vh"]
    sh = _noise(state, gradient)
    state["floor"] = (vh - sh <= 0).float().mean()
    return torch.maximum(vh - (1 - 1 / batches) * sh, vh / batches)


def products(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return vh / N + (1 - 1/N) max(qh, 0): mu^2 from products, not from deviations."""
    qh = _signal(state, gradient)
    state["floor"] = (qh <= 0).float().mean()
    return _with_signal(state, qh, batches)


def products_of_neighbours(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return the same with g_t g_(t-1), which needs one more vector of P elements."""
    last = state.get("last", gradient)
    state["last"] = gradient.clone()
    return _with_signal(state, _mean(state, "q", gradient * last), batches)


def differences(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return `deviations` with s from g_t - g_(t-1); one more vector of P elements."""
    last = state.get("last", gradient)
    state["last"] = gradient.clone()
    noise = _mean(state, "s", (gradient - last) ** 2 / 2)
    vh: Tensor = state["vh"]
    return torch.maximum(vh - (1 - 1 / batches) * noise, vh / batches)


def thresholded_products(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return `products`, less what max(qh, 0) is on average where mu is 0."""
    seen = _seen(state["t"])
    of_noise = 0.4 * ((1 - B1) / (1 + B1) / seen) ** 0.5
    qh = _signal(state, gradient) - of_noise * state["vh"]
    return _with_signal(state, qh, batches)


def rescaled_products(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return `products`, scaled so that max(qh, 0) has the tensor's sum of qh."""
    qh = _signal(state, gradient)
    kept = qh.clamp(min=0)
    scale = qh.sum().clamp(min=0) / kept.sum().clamp(min=1e-30)
    return _with_signal(state, kept * scale, batches)


def share(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return vh (1 - (1 - 1/N) rho), rho being the share of noise of a whole tensor."""
    vh: Tensor = state["vh"]
    sh = _noise(state, gradient)
    rho = (sh.sum() / vh.sum().clamp(min=1e-30)).clamp(max=1)
    return vh * (1 - (1 - 1 / batches) * rho)


def shrunk(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return the same with the share of an element, shrunk towards the tensor's.

    The weight of the element is n / (n + 4 N), n being the window's effective length.
    """
    vh: Tensor = state["vh"]
    sh = _noise(state, gradient)
    seen = _seen(state["t"])
    weight = seen / (seen + 4 * batches)
    of_tensor = (sh.sum() / vh.sum().clamp(min=1e-30)).clamp(max=1)
    of_element = (sh / vh.clamp(min=1e-30)).clamp(max=1)
    rho = weight * of_element + (1 - weight) * of_tensor
    return vh * (1 - (1 - 1 / batches) * rho)


def local(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return vh, as Adam does."""
    vh: Tensor = state["vh"]
    return vh


def root(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return vh / N, which is the learning rate times sqrt(N)."""
    vh: Tensor = state["vh"]
    return vh / batches


def accumulated(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return the second moment of AccumAdam (arXiv 2410.11998), in windows of N steps.

    It commits both moments, of the mean gradient of a window, only when the window
    ends. A step adds its own gradient to the moments that are committed.
    """
    zeros = torch.zeros_like(gradient)
    m, v, total = (state.setdefault(f"a{n}", zeros.clone()) for n in range(3))
    window = (state["t"] + batches - 1) // batches
    state["mh"] = (B1 * m + (1 - B1) * gradient) / (1 - B1**window)
    second: Tensor = (B2 * v + (1 - B2) * gradient**2) / (1 - B2**window)
    total.add_(gradient, alpha=1 / batches)
    if state["t"] % batches == 0:
        m.lerp_(total, 1 - B1)
        v.mul_(B2).addcmul_(total, total, value=1 - B2)
        total.zero_()
    return second


def successive(state: State, gradient: Tensor, batches: int) -> Tensor:
    """Return the mean square of the means of N successive gradients."""
    zeros = torch.zeros_like(gradient)
    v, total = (state.setdefault(f"a{n}", zeros.clone()) for n in range(2))
    total.add_(gradient, alpha=1 / batches)
    decay = B2**batches
    if state["t"] % batches == 0:
        v.mul_(decay).addcmul_(total, total, value=1 - decay)
        total.zero_()
    windows = state["t"] // batches
    mean: Tensor = v / (1 - decay**windows) if windows else state["vh"]
    return mean


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        local,
        deviations,
        products,
        thresholded_products,
        rescaled_products,
        products_of_neighbours,
        differences,
        share,
        shrunk,
        root,
        accumulated,
        successive,
    )
}
