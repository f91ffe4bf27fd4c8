"""The second moment that Adam would have seen of a batch N times as large.

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

    mh, vh     Adam's bias-corrected moments        t   its number of updates
    N          number of batches

A mu that changes makes (g - mh)^2 too large, and vN too small. The lower bound vh / N
limits that: mu^2 + s <= N (mu^2 + s / N), so vN is never smaller than what it estimates
could be. The estimate is an idea of this project; no paper that we know has it.

Every function works on lists of tensors, of parameters that have made the same number
of updates.
"""

import torch
from torch import Tensor

from espnet_distopt.core.compiled import run_compiled

Tensors = list[Tensor]


def to_lend(
    lent: Tensors,
    squares: Tensors,
    noise: Tensors,
    means: Tensors,
    gradients: Tensors,
    step: float,
    betas: tuple[float, float],
    batches: int,
) -> None:
    """Bring s and v up to date, and write to `lent` what the optimizer is to be lent.

    Args:
        lent: tensors with any values.
        squares: v of the step before, without bias correction.
        noise: s of the step before.
        means: Adam's first moment of the step before, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        step: the number of updates before this step, above 0.
        betas: Adam's decay rates (b1, b2), of which b2 is above 0.
        batches: N.
    """
    b2, scales = betas[1], _scales(step, betas)
    less = _removed(step, b2, batches)
    tensors = [lent, squares, noise, means, gradients]
    if len(lent) == 1:
        first = [each[0] for each in tensors]
        if run_compiled(__package__, "follow", first, *scales, b2, less, batches):
            return
    follow_noise(noise, means, gradients, step, betas)
    follow_squares(squares, gradients, b2)
    of_the_whole_batch(lent, squares, noise, step, b2, batches)
    before_the_step(lent, gradients, b2)


def _scales(step: float, betas: tuple[float, float]) -> tuple[float, float]:
    """Return the factor that corrects the bias of the first moment, and 1 + r."""
    b1 = betas[0]
    spread = (1 - b1) / (1 + b1) * (1 + b1**step) / (1 - b1**step)
    return 1 / (1 - b1**step), 1 + spread


def _removed(step: float, b2: float, batches: int) -> float:
    """Return the factor of s by which v is reduced, both without bias correction."""
    unbiased: float = (1 - b2 ** (step + 1)) / (1 - b2**step)
    return (1 - 1 / batches) * unbiased


def follow_noise(
    noise: Tensors,
    means: Tensors,
    gradients: Tensors,
    step: float,
    betas: tuple[float, float],
) -> None:
    """Bring s up to date with the gradients of a step, in place.

    Args:
        noise: s of the step before.
        means: Adam's first moment of the step before, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        step: the number of updates before this step, above 0.
        betas: Adam's decay rates (b1, b2).
    """
    b2, (unbias, spread) = betas[1], _scales(step, betas)
    deviations = torch._foreach_add(gradients, means, alpha=-unbias)
    torch._foreach_mul_(noise, b2)
    torch._foreach_addcmul_(noise, deviations, deviations, (1 - b2) / spread)


def follow_squares(squares: Tensors, gradients: Tensors, b2: float) -> None:
    """Bring v up to date with the gradients of a step, in place, as Adam does.

    Args:
        squares: v of the step before, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        b2: Adam's decay rate of v.
    """
    torch._foreach_mul_(squares, b2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - b2)


def of_the_whole_batch(
    lent: Tensors,
    squares: Tensors,
    noise: Tensors,
    step: float,
    b2: float,
    batches: int,
) -> None:
    """Overwrite `lent` by vN without bias correction, that is vN (1 - b2^t).

    Args:
        lent: tensors with any values.
        squares: v, without bias correction, this step's gradients included.
        noise: s, this step's gradients included.
        step: the number of updates before this step, above 0.
        b2: Adam's decay rate of v.
        batches: N.
    """
    torch._foreach_copy_(lent, squares)
    torch._foreach_add_(lent, noise, alpha=-_removed(step, b2, batches))
    torch._foreach_maximum_(lent, torch._foreach_div(squares, float(batches)))


def before_the_step(wanted: Tensors, gradients: Tensors, b2: float) -> None:
    """Turn the v that Adam is to divide by into the v that it needs before, in place.

    Adam will compute b2 v + (1 - b2) g^2, and so needs (wanted - (1 - b2) g^2) / b2.
    That is negative where the wanted v is smaller than the last gradient's share in it.
    The relative error of what Adam arrives at is at most about N times the dtype's.

    Args:
        wanted: the v that Adam is to divide by, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        b2: Adam's decay rate of v, above 0.
    """
    torch._foreach_addcmul_(wanted, gradients, gradients, -(1 - b2))
    torch._foreach_div_(wanted, b2)
