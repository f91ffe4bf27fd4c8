"""Measures which share of the gradients' noise is each learner's own.

`consistent` estimates the noise s of a learner's gradients from how they change from
step to step. But not all that changes is a learner's own: batches that were cut out of
one of equally long utterances are alike on all learners, and where steps are long the
mean gradient itself turns from step to step. The average of the learners has these as
each of them has. If they counted as noise that an average removes, steps would become
up to sqrt(N) times too long, where it harms most: early, at high learning rates.

So learners compare their first moments, of K of their elements, beside what they send
anyway. For those who differ by their own noise alone,

    E (m_i - sum_j w_j m_j)^2 = d q s_own        d = (1 - w_i)^2 + sum_(j != i) w_j^2

where q is the share of s in m since the learners last averaged their first moments
(`consistent`), and d is 1 - 1/W in a mean over W learners. s_own is followed as Adam
follows its second moment, and compared with s in units of v, which is how Adam weighs
elements:

    A = b2 A + (m_i - sum_j w_j m_j)^2       B = b2 B + d q       s_own = A / B
    share = sum(s_own / v) / sum(s / v)      over elements of one parameter, at most 1

Each of the largest parameters has a share of its own, and the others have that of all
elements. Until learners have compared their moments the shares are 0, and nothing is
corrected.

Cost: K elements more in each exchange, and some passes over as many.
"""

from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.core.learner import Learner
from espnet_distopt.optimizers.consistent import (
    NEVER,
    NOISE,
    SHARED,
    SQUARES,
    can_correct,
    own_share,
    steps_of,
)

TENSORS = 32
"""The number of parameters that have a share of their own; each one costs calls."""

EACH = 256
"""The number of elements that are compared of each of them."""

MOMENTS = ("exp_avg", SQUARES, NOISE)


class NoiseShare:
    """Follows the share of one learner's noise that is its own.

    Attributes:
        shares: the shares by which the optimizer steps, from 0 to 1, of T parameters
            and of all others.
        measured: the shares after the last comparison, which `use` makes `shares`.
        size: K, the number of elements that learners compare; 0 where nothing is
            corrected.

    Args:
        learner: the learner.
        corrects: whether its second moment is corrected. It is not if the optimizer is
            not known (`consistent.can_correct`).
    """

    def __init__(self, learner: Learner, corrects: bool) -> None:
        self._learner = learner
        self._sampled = self._compared = learner.updates
        self._chosen: list[nn.Parameter] = []
        if corrects and can_correct(learner.optimizer):
            # The order of equally large ones is that of the model, on all learners.
            largest = sorted(learner.parameters, key=lambda p: -p.numel())
            self._chosen = largest[:TENSORS]
        self._place = {id(p): n for n, p in enumerate(self._chosen)}
        self._strides = [-(-p.numel() // EACH) for p in self._chosen]
        both = zip(self._chosen, self._strides, strict=True)
        found = [-(-p.numel() // n) for p, n in both]
        counts = torch.tensor(found, dtype=torch.int64)
        self.size = int(counts.sum())
        self.shares = [0.0] * (len(self._chosen) + 1)
        self.measured = list(self.shares)
        new = learner.params.new_zeros
        self._taken = new(4, self.size)  # m, v, s and q
        self._followed = new(2, self.size)  # A and B
        numbers = torch.arange(len(counts)).repeat_interleave(counts)
        self._of = numbers.to(learner.params.device)

    def of(self, parameter: Tensor) -> float:
        """Return the share of a parameter's noise."""
        return self.shares[self._place.get(id(parameter), -1)]

    def sample(self) -> Tensor:
        """Return this learner's first moments (K,), which stay until the next call.

        They are corrected for their bias, because learners may differ in their steps.
        """
        self._sampled = self._learner.updates
        optimizer = self._learner.optimizer
        states = [optimizer.state.get(p, {}) for p in self._chosen]
        if not states:
            return self._taken[0]
        groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        factors = []
        both = list(zip(self._chosen, states, strict=True))
        for (parameter, state), step in zip(both, steps_of(states), strict=True):
            b1, b2 = map(float, groups[id(parameter)]["betas"])
            unbias = 1 / (1 - b1**step) if step else 0.0
            row = [unbias, 0.0, 0.0, 0.0]
            if NOISE in state and step > 1:
                row[1:3] = 1 / (1 - b2**step), 1 / (1 - b2 ** (step - 1))
                row[3] = own_share(step, b1, state.get(SHARED, NEVER)) * unbias**2
            factors.append(row)
        for row_of, name in zip(self._taken, MOMENTS, strict=False):
            # A parameter without the moment has the factor 0, whatever is read.
            there = (state.get(name, p.detach()) for p, state in both)
            every = zip(there, self._strides, strict=True)
            torch.cat([moment.reshape(-1)[::n] for moment, n in every], out=row_of)
        self._taken[3] = 1.0
        self._taken *= self._taken.new_tensor(factors).T[:, self._of]
        return self._taken[0]

    def compare(self, mean: Tensor, spread: float) -> None:
        """Follow the noise of this learner's own, and measure the shares.

        Args:
            mean: the mean of what `sample` has returned last to those who compare it
                (K,), this learner among them.
            spread: d, by the weights of that mean.
        """
        if self.size == 0:
            return
        own_moments, squares, noise, q = self._taken
        passed, self._compared = self._sampled - self._compared, self._sampled
        b2 = float(self._learner.optimizer.param_groups[0]["betas"][1])
        self._followed.mul_(b2 ** max(0, passed))
        self._followed[0].add_((own_moments - mean).square() * (q > 0))
        self._followed[1].add_(q, alpha=spread)
        known = (self._followed[1] > 0) & (squares > 0)
        own = self._followed[0] / self._followed[1] / squares
        both = torch.stack([own, noise / squares]).where(known, 0.0)
        sums = both.new_zeros(2, len(self._chosen)).index_add_(1, self._of, both)
        ours, all_noise = torch.cat([sums, sums.sum(1, keepdim=True)], 1).tolist()
        for n, (part, whole) in enumerate(zip(ours, all_noise, strict=True)):
            if whole > 0:
                self.measured[n] = min(1.0, part / whole)

    def use(self) -> None:
        """Step by what was measured last; the training side calls it."""
        self.shares = list(self.measured)

    def state_dict(self) -> dict[str, Any]:
        """Return all that must be remembered when a run is resumed."""
        return {
            "shares": list(self.shares),
            "taken": self._taken.clone(),
            "followed": self._followed.clone(),
            "updates": (self._sampled, self._compared),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        if state["taken"].shape != self._taken.shape:
            return
        self.measured = list(state["shares"])
        self.use()
        self._taken.copy_(state["taken"])
        self._followed.copy_(state["followed"])
        self._sampled, self._compared = state["updates"]
