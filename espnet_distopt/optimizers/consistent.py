"""Lets an optimizer of Adam's family divide by the second moment of the whole batch.

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
    vN_t = max(vh_t - c (1 - 1/N) sh_t, vh_t / N)

    mh, vh     Adam's bias-corrected moments        t   its number of updates
    N          number of batches
    c          the share of s that is a learner's own, which learners measure by
               comparing their gradients, see `noise_share`

Where learners average their first moments, too, mh has less noise than that. An average
over W workers at update a leaves the share q_a of s in m, and from then on

    q_t = b1^(2 (t-a)) q_a + (1 - b1) / (1 + b1) (1 - b1^(2 (t-a)))     Var(m_t) = q_t s
    r_t = q_(t-1) / (1 - b1^(t-1))^2
    q_a = b1^(2 (a-c)) q_c + (1 - b1) / (1 + b1) (1 - b1^(2 (a-c))) / W

where c is the average before: what the workers have in common is not averaged out. With
a = 0 and q_0 = 0 that is the r_t above.

A mu that changes, and noise that learners have in common, make (g - mh)^2 too large.
c mends that, and so does the lower bound vh / N: mu^2 + s <= N (mu^2 + s / N), so vN is
never smaller than what it estimates could be. The estimate is an idea of this project;
no paper that we know has it.

The optimizer's own step is left as it is: for the time of the step it is lent another
second moment, such that it arrives at vN, and afterwards it gets
its own back, which has followed the gradients meanwhile. So learning rates, weight
decay, the rectification of RAdam and the look-ahead of NAdam stay the optimizer's, and
its state is the one that it has without the correction, with one moment more.

That suits an optimizer whose step is linear in the gradients but for the division by
the root of v: then the mean of N learners' steps is the step of the mean gradient, once
they all divide by what the mean gradient's v would be. Adam, AdamW, NAdam and RAdam are
such. AMSGrad is not, because the maximum of v remembers noise, and neither is LAMB,
whose steps have a length of their own: noise lengthens the update that it normalizes.

Cost: one more moment (P elements, in the optimizer's state, saved and loaded with it),
P elements more while the optimizer steps, and one pass over eight tensors of that size,
where Adam's own step passes over seven.
"""

import inspect
import logging
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam

NOISE = "noise_sq"
"""The key of s in the optimizer's state of a parameter."""

SHARED = "noise_shared"
"""The key of what the last average of first moments has left."""

Tensors = list[Tensor]

Shared = tuple[float, float]
"""The last average of first moments: the update a, and the share q_a of s in m."""

NEVER: Shared = (0.0, 0.0)
"""What it is where first moments are not averaged."""

SQUARES = "exp_avg_sq"
"""The key of v in the optimizer's state of a parameter."""

FAMILY = (Adam, AdamW, NAdam, RAdam)

CHUNK = 1 << 17
"""Elements that are worked on at a time, which a processor's cache holds; a parameter
that has more is worked on as a whole."""

GPU_CHUNK = 1 << 24
"""The same on a GPU, where each chunk costs the launch of some operations."""


class Shares(Protocol):
    """Which share of a parameter's noise is each learner's own, c."""

    def of(self, parameter: Tensor) -> float:
        """Return c of a parameter."""
        ...


class AllOwn:
    """Learners whose noise has nothing in common: c is 1."""

    def of(self, parameter: Tensor) -> float:
        """Return 1."""
        return 1.0


def can_correct(optimizer: Optimizer) -> bool:
    """Return whether the second moment of `optimizer` can be corrected.

    That of a class with a step of its own is not known, whatever the class inherits.
    """
    known = {inspect.unwrap(kind.step) for kind in FAMILY}
    return (
        isinstance(optimizer, FAMILY)
        and inspect.unwrap(type(optimizer).step) in known
        and all(map(_is_known, optimizer.param_groups))
    )


def _is_known(group: dict[str, Any]) -> bool:
    """Return whether a group's second moment is a plain moving average.

    In 16 bits it is none: 0.999 v is rounded to v there.
    """
    variants = ("amsgrad", "capturable", "differentiable")
    precise = all(p.dtype in (torch.float32, torch.float64) for p in group["params"])
    return precise and group["betas"][1] > 0 and not any(map(group.get, variants))


def correct(
    optimizer: Optimizer,
    batches: float,
    noise: Shares | None = None,
    warns: bool = True,
) -> "ConsistentSecondMoment | None":
    """Correct the steps of `optimizer` from now on, if it is known and there is need.

    Args:
        optimizer: the optimizer of one learner.
        batches: the number of batches whose mean the learners' average takes.
        noise: the shares of each learner's own noise; None means all of it.
        warns: whether to log that the optimizer is not known. SGD divides by nothing,
            and needs no warning.

    Returns:
        The correction, to be closed; None if there is none.
    """
    if batches == 1 or isinstance(optimizer, SGD):
        return None
    if can_correct(optimizer):
        return ConsistentSecondMoment(optimizer, batches, noise)
    if warns:
        logging.getLogger(__name__).warning(
            f"second_moment: consistent is not known for this "
            f"{type(optimizer).__name__} (Adam, AdamW, NAdam and RAdam in float32, "
            "without amsgrad and capturable): what it divides its steps by stays that "
            "of each learner's own batches; second_moment: local says nothing of it"
        )
    return None


class ConsistentSecondMoment:
    """Corrects every step of an optimizer, from its construction to `close`.

    Attributes:
        batches: the number of batches whose mean the learners' average takes, N. It may
            change between two steps, to 1 as well: the noise is followed all the same.

    Args:
        optimizer: an optimizer for which `can_correct` holds.
        batches: N at first, above 1.
        noise: the shares of each learner's own noise; None means all of it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        batches: float,
        noise: Shares | None = None,
    ) -> None:
        assert can_correct(optimizer)
        assert batches > 1
        self.batches, self._noise = batches, noise or AllOwn()
        self._own: list[tuple[dict[str, Any], Tensor]] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._take_back),
        ]

    def close(self) -> None:
        """Leave no hook behind; the optimizer keeps its state."""
        self._take_back()
        for handle in self._handles:
            handle.remove()

    def _before(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have the step call its closure first, if it has one, and then `_lend`.

        The optimizer calls a closure when all hooks have run, so that these gradients
        are the ones that it uses, whoever computes or clips them.
        """
        kwargs = dict(kwargs)
        # the first argument is the optimizer itself
        closure = args[1] if len(args) > 1 else kwargs.pop("closure", None)

        def lend_too() -> Any:
            loss = None if closure is None else closure()
            self._lend(optimizer)
            return loss

        return (args[0], lend_too, *args[2:]), kwargs

    @torch.no_grad()
    def _lend(self, optimizer: Optimizer) -> None:
        """Follow the gradients, and lend the second moment for one step."""
        self._take_back()  # A step that has failed may have left something.
        if _is_skipped(optimizer):
            return
        for group, parameters in _chunks(optimizer):
            states = [optimizer.state[p] for p in parameters]
            gradients = _gradients(optimizer, group, parameters)
            removed = [(1 - 1 / self.batches) * self._noise.of(p) for p in parameters]
            ages = list(zip(steps_of(states), _shared(states), strict=True))
            for age in set(ages):
                if age[0] == 0:  # Before the first update no mean is there to differ.
                    continue
                alike = [n for n, each in enumerate(ages) if each == age]
                self._lend_to(
                    group,
                    [states[n] for n in alike],
                    [gradients[n] for n in alike],
                    [removed[n] for n in alike],
                    age,
                )

    def _lend_to(
        self,
        group: dict[str, Any],
        states: list[dict[str, Any]],
        gradients: list[Tensor],
        removed: list[float],
        age: tuple[float, Shared],
    ) -> None:
        b1, b2 = map(float, group["betas"])
        step, shared = age
        for state in states:
            if NOISE not in state:
                state[NOISE] = torch.zeros_like(state[SQUARES])
        squares, noise = _of(states, SQUARES), _of(states, NOISE)
        moments = squares, noise, _of(states, "exp_avg")
        batches = self.batches
        lent = to_lend(*moments, gradients, removed, step, (b1, b2), batches, shared)
        for state, own, other in zip(states, squares, lent, strict=True):
            self._own.append((state, own))
            state[SQUARES] = other

    def _take_back(self, *_: Any) -> None:
        """Give the optimizer its own second moment back."""
        for state, own in self._own:
            state[SQUARES] = own
        self._own.clear()


def _gradients(
    optimizer: Optimizer, group: dict[str, Any], parameters: list[Tensor]
) -> list[Tensor]:
    """Return the gradients that the moments follow: with L2 decay, unscaled."""
    found = [p.grad for p in parameters if p.grad is not None]
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        found = list(torch._foreach_div(found, scale))
    if group.get("maximize"):
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
            if size >= (CHUNK if parameter.device.type == "cpu" else GPU_CHUNK):
                yield group, chunk
                chunk, size = [], 0
        if chunk:
            yield group, chunk


def steps_of(states: list[dict[str, Any]]) -> list[float]:
    """Return the number of updates of some parameters, 0 where there was none yet.

    A fused optimizer may keep it on a GPU, and to ask for each one would wait each
    time: so they are fetched together.
    """
    zero = torch.zeros(())
    known = [state["step"] for state in states if "step" in state]
    if len(known) == len(states):
        fetched: list[float] = torch.stack(known).tolist()
        return fetched
    return [float(state.get("step", zero)) for state in states]


def _shared(states: list[dict[str, Any]]) -> list[Shared]:
    """Return the last average of first moments of some parameters."""
    return [state.get(SHARED, NEVER) for state in states]


def _is_skipped(optimizer: Optimizer) -> bool:
    """Return whether a fused optimizer has found its gradients infinite."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _of(states: list[dict[str, Any]], name: str) -> list[Tensor]:
    return [state[name] for state in states]


# The arithmetic works on lists of tensors, of parameters with equally many updates.


def to_lend(
    squares: Tensors,
    noise: Tensors,
    means: Tensors,
    gradients: Tensors,
    removed: list[float],
    step: float,
    betas: tuple[float, float],
    batches: float,
    shared: Shared = NEVER,
) -> Tensors:
    """Bring s and v up to date, in place, and return what the optimizer is to be lent.

    Adam will compute b2 v + (1 - b2) g^2, and is to arrive at vN. So it is lent
    (vN - (1 - b2) g^2) / b2, which is negative where vN is smaller than the last
    gradient's share in it. The relative error of what Adam arrives at is at most about
    N times the dtype's.

    Args:
        squares: v of the step before, without bias correction.
        noise: s of the step before.
        means: Adam's first moment of the step before, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        removed: the share of s that the average removes, c (1 - 1/N), for each tensor.
        step: the number of updates before this step, above 0.
        betas: Adam's decay rates (b1, b2), of which b2 is above 0.
        batches: N.
        shared: the last average of first moments.
    """
    b2 = betas[1]
    unbias, spread = _scales(step, betas, shared)
    deviations = torch._foreach_add(gradients, means, alpha=-unbias)
    torch._foreach_mul_(noise, b2)
    torch._foreach_addcmul_(noise, deviations, deviations, (1 - b2) / spread)
    torch._foreach_mul_(squares, b2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - b2)
    # vN (1 - b2^t), where s has a bias of its own, that of a step less.
    unbias_s = (1 - b2 ** (step + 1)) / (1 - b2**step)
    lent = list(torch._foreach_mul(noise, [-each * unbias_s for each in removed]))
    torch._foreach_add_(lent, squares)
    torch._foreach_maximum_(lent, torch._foreach_div(squares, float(batches)))
    torch._foreach_addcmul_(lent, gradients, gradients, -(1 - b2))
    torch._foreach_div_(lent, b2)
    return lent


def after_average(step: float, b1: float, shared: Shared, workers: int) -> float:
    """Return the share of s in the first moment after an average, q_a."""
    common, own = _shares(step, b1, shared)
    return common + own / workers


def _shares(step: float, b1: float, shared: Shared) -> tuple[float, float]:
    """Return the shares of s in m: those that workers have in common, and its own."""
    last, kept = shared
    left: float = b1 ** (2 * (step - last))
    return left * kept, (1 - b1) / (1 + b1) * (1 - left)


def _scales(
    step: float, betas: tuple[float, float], shared: Shared
) -> tuple[float, float]:
    """Return the factor that corrects the bias of the first moment, and 1 + r."""
    unbias: float = 1 / (1 - betas[0] ** step)
    return unbias, 1 + unbias**2 * sum(_shares(step, betas[0], shared))
