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

Where learners average their first moments, too, mh has less noise than that. An average
over W workers at update a leaves the share q_a of s in m, and from then on

    q_t = b1^(2 (t-a)) q_a + (1 - b1) / (1 + b1) (1 - b1^(2 (t-a)))     Var(m_t) = q_t s
    r_t = q_(t-1) / (1 - b1^(t-1))^2
    q_a = b1^(2 (a-c)) q_c + (1 - b1) / (1 + b1) (1 - b1^(2 (a-c))) / W

where c is the average before: what the workers have in common is not averaged out. With
a = 0 and q_0 = 0 that is the r_t above.

A mu that changes makes (g - mh)^2 too large, and vN too small. The lower bound vh / N
limits that: mu^2 + s <= N (mu^2 + s / N), so vN is never smaller than what it estimates
could be. The estimate is an idea of this project; no paper that we know has it.

Every function works on lists of tensors, of parameters that have made the same number
of updates.
"""

import torch
from torch import Tensor

Tensors = list[Tensor]

Shared = tuple[float, float]
"""The last average of first moments: the update a, and the share q_a of s in m."""

NEVER: Shared = (0.0, 0.0)
"""What it is where first moments are not averaged."""


def to_lend(
    lent: Tensors,
    squares: Tensors,
    noise: Tensors,
    means: Tensors,
    gradients: Tensors,
    step: float,
    betas: tuple[float, float],
    batches: int,
    shared: Shared = NEVER,
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
        shared: the last average of first moments.
    """
    b2 = betas[1]
    follow_noise(noise, means, gradients, step, betas, shared)
    follow_squares(squares, gradients, b2)
    of_the_whole_batch(lent, squares, noise, step, b2, batches)
    before_the_step(lent, gradients, b2)


def after_average(step: float, b1: float, shared: Shared, workers: int) -> float:
    """Return the share of s in the first moment after an average, q_a.

    Args:
        step: the number of updates before the average, a.
        b1: Adam's decay rate of the first moment.
        shared: the average before.
        workers: W.
    """
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
    shared: Shared = NEVER,
) -> None:
    """Bring s up to date with the gradients of a step, in place.

    Args:
        noise: s of the step before.
        means: Adam's first moment of the step before, without bias correction.
        gradients: the gradients that the moments will follow in this step.
        step: the number of updates before this step, above 0.
        betas: Adam's decay rates (b1, b2).
        shared: the last average of first moments.
    """
    b2, (unbias, spread) = betas[1], _scales(step, betas, shared)
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
