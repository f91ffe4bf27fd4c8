"""Measures which share of the gradients' noise is each learner's own.

`consistent` estimates the noise s of a learner's gradients from how they change from
step to step. But not all that changes is a learner's own: batches that were cut out of
one of equally long utterances are alike on all learners, and where steps are long the
mean gradient itself turns from step to step. The average of the learners has these as
each of them has. If they counted as noise that an average removes, steps would become
up to sqrt(N) times too long, where it harms most: early, at high learning rates.

So learners compare K elements of their last gradients, beside what they send anyway.
For those who differ by their own noise alone,

    E (g_i - sum_j w_j g_j)^2 = d s_own        d = (1 - w_i)^2 + sum_(j != i) w_j^2

in a mean of any weights; in a plain mean of W learners, d is 1 - 1/W. s_own is
followed as Adam follows its second moment:

    A = b2 A + (g_i - sum_j w_j g_j)^2         B = b2 B + d         s_own = A / B
    share = sum(s_own) / sum(s)                over elements of one parameter

Each of the largest parameters has a share of its own, and the others have that of all
elements. A few elements measure it to some per cent. Where learners have nothing in
common, too small a share would leave more noise than N learners have, if N is large: so
shares are divided by `WHOLE`, and are at most 1. Until learners have compared their
gradients they are 0, and nothing is corrected.

Learners that do not keep step meet what they have in common at different times. So each
of two learners that exchange sends the gradients of its last steps, and they compare
those of the same step, see `PairedNoiseShare`. Learners that are further apart compare
their last ones, and what they have in common counts as their own.

Cost: the elements that are compared, in each exchange, and some passes over as many.
"""

from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.core.learner import Learner
from espnet_distopt.optimizers.consistent import (
    NOISE,
    can_correct,
    steps_of,
)

TENSORS = 32
"""The number of parameters that have a share of their own; each one costs calls."""

EACH = 256
"""The number of elements that are compared of each of them."""

EACH_OF_PAIRS = 32
"""The same where learners exchange in pairs, and do so more often."""

WHOLE = 0.9
"""A share that is measured as so much counts as 1."""

STEPS = 8
"""The number of last steps whose gradients they exchange."""

TURN = 128
"""Steps are counted modulo this, so that bfloat16 holds the count exactly."""


class NoiseShare:
    """Follows the share of one learner's noise that is its own.

    Attributes:
        shares: the shares by which the optimizer steps, of T parameters and of all
            others.
        measured: the shares after the last comparison, which `use` makes `shares`.
        size: K, the number of elements that learners compare; 0 where nothing is
            corrected.
        sees: whether the next update's gradients are kept for `sample`.

    Args:
        learner: the learner.
        corrects: whether its second moment is corrected. It is not if the optimizer is
            not known (`consistent.can_correct`).
        each: the number of elements of a parameter that are compared.
    """

    def __init__(self, learner: Learner, corrects: bool, each: int = EACH) -> None:
        self._learner = learner
        self._sampled = self._compared = learner.updates
        self.sees = True
        self._chosen: list[nn.Parameter] = []
        if corrects and can_correct(learner.optimizer):
            # The order of equally large ones is that of the model, on all learners.
            largest = sorted(learner.parameters, key=lambda p: -p.numel())
            self._chosen = [p for p in largest[:TENSORS] if p.numel()]
        self._place = {id(p): n for n, p in enumerate(self._chosen)}
        self._strides = [-(-p.numel() // each) for p in self._chosen]
        both = zip(self._chosen, self._strides, strict=True)
        found = [-(-p.numel() // n) for p, n in both]
        self._counts = torch.tensor(found, dtype=torch.int64)
        self.size = sum(found)
        self.shares = [0.0] * (len(self._chosen) + 1)
        self.measured = list(self.shares)
        new = learner.params.new_zeros
        self._seen = new(self.size)
        self._reached = [False] * len(self._chosen)
        self._taken = new(2, self.size)  # g and s
        # What is measured from them lies on the CPU, where sums have the same bits.
        self._factors = torch.zeros(2, len(self._chosen))  # of s; whether it is known
        self._followed = torch.zeros(2, self.size, dtype=learner.params.dtype)  # A, B
        self._of = torch.arange(len(found)).repeat_interleave(self._counts)
        if self._chosen:
            learner.updated.append(self._see)

    def _see(self) -> None:
        """Keep elements of an update's gradients, which a loop clears behind it."""
        if not self.sees:
            return
        gradients = [p.grad for p in self._chosen]
        self._reached = [each is not None for each in gradients]
        both = zip(self._chosen, gradients, strict=True)
        self._read([p.detach() if g is None else g for p, g in both], self._seen)

    def _read(self, tensors: list[Tensor], out: Tensor) -> None:
        """Write the compared elements of tensors, one of each parameter, to `out`."""
        both = zip(tensors, self._strides, strict=True)
        torch.cat([each.reshape(-1)[::n] for each, n in both], out=out)

    @property
    def gradients(self) -> Tensor:
        """What `sample` has taken last, (K,)."""
        return self._taken[0]

    def of(self, parameter: Tensor) -> float:
        """Return the share of a parameter's noise."""
        return self.shares[self._place.get(id(parameter), -1)]

    def sample(self) -> Tensor:
        """Return elements of the last update's gradients (K,), until the next call."""
        if not self._chosen or self._sampled == self._learner.updates:
            return self._taken[0]
        self._sampled = self._learner.updates
        optimizer = self._learner.optimizer
        states = [optimizer.state.get(p, {}) for p in self._chosen]
        groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        factors, noise = [], list[Tensor]()
        every = zip(self._chosen, states, steps_of(states), self._reached, strict=True)
        for parameter, state, step, reached in every:
            known = reached and NOISE in state and step > 1
            b2 = float(groups[id(parameter)]["betas"][1])
            factors.append((1 / (1 - b2 ** (step - 1)) if known else 0.0, float(known)))
            noise.append(state[NOISE] if known else parameter.detach())
        self._factors = torch.tensor(factors, dtype=self._followed.dtype).T
        self._taken[0] = self._seen
        self._read(noise, self._taken[1])
        parts = torch.split(self._taken[0], self._counts.tolist())
        for part, (_, is_known) in zip(parts, factors, strict=True):
            if not is_known:
                part.zero_()
        return self._taken[0]

    def compare(self, deviations: Tensor, spread: float) -> None:
        """Follow the noise of this learner's own, and measure the shares.

        Args:
            deviations: squares of what `sample` has returned last, less the mean of
                those who compare it (K,): this learner's, or their mean.
            spread: d, by the weights of that mean.
        """
        if self.size == 0:
            return
        squares, noise = torch.stack([deviations.to(self._taken), self._taken[1]]).cpu()
        factors, known = self._factors[:, self._of]
        passed, self._compared = self._sampled - self._compared, self._sampled
        b2 = float(self._learner.optimizer.param_groups[0]["betas"][1])
        self._followed.mul_(b2 ** max(0, passed))
        self._followed[0].add_(squares * known)
        self._followed[1].add_(known, alpha=spread)
        own = self._followed[0] / self._followed[1]
        both = torch.stack([own, noise * factors]).where(self._followed[1] > 0, 0.0)
        sums = both.new_zeros(2, len(self._chosen)).index_add_(1, self._of, both)
        ours, all_noise = torch.cat([sums, sums.sum(1, keepdim=True)], 1).tolist()
        for n, (part, whole) in enumerate(zip(ours, all_noise, strict=True)):
            if whole > 0:
                self.measured[n] = min(1.0, part / whole / WHOLE)

    def use(self) -> None:
        """Step by what was measured last; the training side calls it."""
        self.shares = list(self.measured)

    def state_dict(self) -> dict[str, Any]:
        """Return all that must be remembered when a run is resumed."""
        return {
            "shares": list(self.shares),
            "taken": self._taken.clone(),
            "factors": self._factors.clone(),
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
        self._factors = state["factors"].cpu()
        self._followed.copy_(state["followed"])
        self._sampled, self._compared = state["updates"]


class PairedNoiseShare(NoiseShare):
    """Compares the gradients of two learners at the same step of an epoch.

    Attributes:
        message_size: the number of elements that learners exchange, `STEPS` K + 1, or
            0.

    Args:
        learner: the learner.
        corrects: see `NoiseShare`.
    """

    def __init__(self, learner: Learner, corrects: bool) -> None:
        super().__init__(learner, corrects, EACH_OF_PAIRS)
        self.message_size = STEPS * self.size + 1 if self.size else 0
        self._latest = self._taken.new_zeros(STEPS, self.size)  # The last one first.
        self._epoch_start = self._last_step = learner.steps

    def begin_epoch(self) -> None:
        """Count steps from here, as the other learners do."""
        self._epoch_start = self._learner.steps

    def sample(self) -> Tensor:
        """Return elements of the last update's gradients; called at each step."""
        taken = super().sample()
        if self.size and self._last_step != self._learner.steps:
            self._last_step = self._learner.steps
            self._latest = self._latest.roll(1, 0)
            self._latest[0] = taken
        return taken

    def message(self) -> Tensor:
        """Return the last steps' samples and the number of steps, (STEPS K + 1,)."""
        steps = (self._last_step - self._epoch_start) % TURN
        return torch.cat([self._latest.flatten(), self._latest.new_full((1,), steps)])

    def compare_pair(self, own: Tensor, difference: Tensor) -> None:
        """Compare the messages of two learners.

        Args:
            own: this learner's message.
            difference: the peer's, less this one's.
        """
        if self.size == 0:
            return
        own, difference = torch.stack([own, difference]).cpu()
        ahead = (round(float(difference[-1])) + TURN // 2) % TURN - TURN // 2
        mine = own[:-1].view(STEPS, self.size)
        theirs = mine + difference[:-1].view(STEPS, self.size)
        if abs(ahead) >= STEPS:
            ahead = 0
        deviation = (theirs[max(0, ahead)] - mine[max(0, -ahead)]) / 2
        self.compare(deviation.square(), 0.5)

    def state_dict(self) -> dict[str, Any]:
        """Return all that must be remembered when a run is resumed."""
        more = {
            "latest": self._latest.clone(),
            "steps": (self._epoch_start, self._last_step),
        }
        return super().state_dict() | more

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        super().load_state_dict(state)
        self._epoch_start, self._last_step = state["steps"]
        if state["latest"].shape == self._latest.shape:
            self._latest = state["latest"].to(self._latest, copy=True)
