"""Adam's second moment, as the batch of all learners together would have given it.

Adam divides its step by the root of v, a moving average of g^2. Where N learners train
on batches of their own and average their models, each learner's gradient has N times
the variance of the gradient of all batches together:

    g = mu + noise, Var(noise) = s        one learner's batch:  E[g^2] = mu^2 + s
                                          all N batches:        E[g^2] = mu^2 + s / N

So each learner divides by a root that is up to sqrt(N) too large, and the mean of the
learners takes steps that are as much too short. No communication is needed to mend it:
s can be estimated from the learner's own moments. Adam's bias-corrected first moment of
the step before, mh, is independent of the noise of g_t, and where mu does not change

    r_t  = (1 - b1) / (1 + b1) (1 + b1^(t-1)) / (1 - b1^(t-1))      Var(mh) = r_t s
    s_t  = b2 s_(t-1) + (1 - b2) (g_t - mh)^2 / (1 + r_t)           t > 1
    sh_t = s_t / (1 - b2^(t-1))                                     estimates s
    vN_t = max(vh_t - (1 - 1/N) sh_t, vh_t / N)
    x_t  = x_(t-1) - lr mh_t / (sqrt(vN_t) + eps)

    mh, vh     Adam's bias-corrected moments        t   its number of updates
    N          `batches`                            x   the parameters

A mu that changes makes (g - mh)^2 too large, and vN too small. The lower bound vh / N
limits that: mu^2 + s <= N (mu^2 + s / N), so vN is never smaller than what it estimates
could be. The correction is an idea of this project; no paper has it.

Cost: one more moment (P elements, in the optimizer's state, saved and loaded with it)
and about as many passes over memory as Adam's own step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from espnet_distopt.errors import InputError

NOISE = "noise_sq"
"""The key of s in the optimizer's state of a parameter."""

CHUNK = 1 << 20
"""Elements that are worked on at a time: temporary tensors are no larger."""


def can_correct(optimizer: Optimizer) -> bool:
    """Return whether the second moment of `optimizer` can be corrected."""
    return isinstance(optimizer, (Adam, AdamW)) and not any(
        group["amsgrad"] or group["capturable"] for group in optimizer.param_groups
    )


def correct(optimizer: Optimizer, batches: int) -> "ConsistentSecondMoment | None":
    """Correct the steps of `optimizer` from now on; SGD has nothing to correct.

    Args:
        optimizer: the optimizer of one learner.
        batches: the number of batches whose mean the learners' average takes.

    Returns:
        The correction, to be closed; None if there is nothing to correct.

    Raises:
        InputError: the optimizer divides by a second moment that is not known here.
    """
    if batches == 1 or isinstance(optimizer, SGD):
        return None
    if not can_correct(optimizer):
        raise InputError(
            "second_moment: consistent is for Adam and AdamW without amsgrad and "
            f"capturable (and for SGD, which has none), not for this "
            f"{type(optimizer).__name__}; set second_moment: local"
        )
    return ConsistentSecondMoment(optimizer, batches)


class ConsistentSecondMoment:
    """Corrects every step of an optimizer, from its construction to `close`.

    Args:
        optimizer: Adam or AdamW, for which `can_correct` holds.
        batches: the number of batches whose mean the learners' average takes, N > 1.
    """

    def __init__(self, optimizer: Optimizer, batches: int) -> None:
        assert can_correct(optimizer)
        assert batches > 1
        self._batches = batches
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def close(self) -> None:
        """Leave no hook behind; the optimizer keeps its state."""
        for handle in self._handles:
            handle.remove()

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Follow the noise of the gradients that the step will use.

        Raises:
            InputError: the step has a closure, which computes the gradients later.
        """
        # the first argument is the optimizer itself
        if any(a is not None for a in (*args[1:], kwargs.get("closure"))):
            raise InputError(
                "second_moment: consistent needs the gradients before the optimizer's "
                "step: call step() without a closure, or set second_moment: local"
            )
        if _is_skipped(optimizer):
            return
        scale = getattr(optimizer, "grad_scale", None)
        for group, parameters in _chunks(optimizer):
            states = [optimizer.state[p] for p in parameters]
            gradients = _gradients(optimizer, group, parameters, scale)
            _follow_noise(states, gradients, *group["betas"])

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Replace the step by the one with the corrected second moment."""
        if _is_skipped(optimizer):
            return
        for group, parameters in _chunks(optimizer):
            found = [p for p in parameters if NOISE in optimizer.state[p]]
            states = [optimizer.state[p] for p in found]
            if found:
                self._correct(group, found, states)

    def _correct(
        self, group: dict[str, Any], parameters: list[Tensor], states: list[Any]
    ) -> None:
        b1, b2 = group["betas"]
        steps = [float(state["step"]) for state in states]
        vh = torch._foreach_div(_of(states, "exp_avg_sq"), [1 - b2**t for t in steps])
        unbiased = [(1 - 1 / self._batches) / (1 - b2 ** (t - 1)) for t in steps]
        excess = torch._foreach_mul(_of(states, NOISE), unbiased)
        vn = torch._foreach_sub(vh, excess)
        torch._foreach_maximum_(vn, torch._foreach_div(vh, float(self._batches)))
        gains = [_reciprocal_root(v, group["eps"]) for v in (vn, vh)]
        torch._foreach_sub_(*gains)
        rates = [-float(group["lr"]) / (1 - b1**t) for t in steps]
        torch._foreach_mul_(gains[0], rates)
        torch._foreach_addcmul_(parameters, gains[0], _of(states, "exp_avg"))


def _reciprocal_root(squares: Any, eps: float) -> list[Tensor]:
    """Return 1 / (sqrt(v) + eps) of each tensor, in its place."""
    torch._foreach_sqrt_(squares)
    torch._foreach_add_(squares, eps)
    torch._foreach_reciprocal_(squares)
    return list(squares)


def _follow_noise(
    states: list[Any], gradients: list[Tensor], b1: float, b2: float
) -> None:
    """Bring s of some parameters up to date; those without an update have none yet."""
    kept = [n for n, state in enumerate(states) if float(state.get("step", 0.0)) > 0]
    if not kept:
        return
    states, gradients = [states[n] for n in kept], [gradients[n] for n in kept]
    for state in states:
        if NOISE not in state:
            state[NOISE] = torch.zeros_like(state["exp_avg_sq"])
    steps = [float(state["step"]) for state in states]
    means = [-1 / (1 - b1**t) for t in steps]
    deviations = torch._foreach_mul(_of(states, "exp_avg"), means)
    torch._foreach_add_(deviations, gradients)
    spreads = [(1 - b1) / (1 + b1) * (1 + b1**t) / (1 - b1**t) for t in steps]
    noise = _of(states, NOISE)
    torch._foreach_mul_(noise, b2)
    shares = [(1 - b2) / (1 + r) for r in spreads]
    torch._foreach_addcmul_(noise, deviations, deviations, shares)


def _gradients(
    optimizer: Optimizer,
    group: dict[str, Any],
    parameters: list[Tensor],
    scale: Tensor | None,
) -> list[Tensor]:
    """Return the gradients that the moments follow: with L2 decay, unscaled."""
    found = [p.grad for p in parameters if p.grad is not None]
    if scale is not None:
        found = list(torch._foreach_div(found, scale))
    if group["maximize"]:
        found = list(torch._foreach_neg(found))
    if group["weight_decay"] and not _decouples(optimizer, group):
        found = list(torch._foreach_add(found, parameters, alpha=group["weight_decay"]))
    return found


def _decouples(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Return whether weight decay stays out of the moments, as in AdamW."""
    return isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))


def _chunks(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
    """Yield the parameters that have gradients, about `CHUNK` elements at a time."""
    for group in optimizer.param_groups:
        chunk: list[Tensor] = []
        size = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            chunk.append(parameter)
            size += parameter.numel()
            if size >= CHUNK:
                yield group, chunk
                chunk, size = [], 0
        if chunk:
            yield group, chunk


def _is_skipped(optimizer: Optimizer) -> bool:
    """Return whether a fused optimizer has found its gradients infinite."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _of(states: list[Any], name: str) -> list[Tensor]:
    return [state[name] for state in states]
