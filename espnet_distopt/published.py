"""The published copy of a learner's parameters: all that gossip ever touches.

The live parameters belong to the training side alone, so no layer ever sees a model
that changes under it. At the end of each step the training side applies the pending
corrections and publishes a new copy; the gossip side sends published copies and adds
corrections. Drivers see to it that these methods never run at the same time.

Lian et al. 2018 (AD-PSGD), in delta form: the two corrections of a pair are exact
negatives of each other in IEEE arithmetic, so the sum over the learners is conserved
whatever the optimizer does in between.
"""

from collections import Counter

import torch
from torch import Tensor

from espnet_distopt.learner import Learner


class Published:
    """Double-buffered copy of `learner.params`, and the corrections not yet applied.

    Invariant: the newest copy is the live parameters as of the last `publish` or
    `refresh`, plus the corrections not applied by then, and those since. Memory: 3 (P,)
    tensors, or nothing.

    Attributes:
        staleness: how many own steps lay between a sent copy and the application of
            the correction computed from it -> how often, since construction. Nobody
            clears it.

    Args:
        learner: whose parameters.
        shared: whether anybody is there to see them; if not, nothing is kept, and the
            training side's methods do nothing.
    """

    def __init__(self, learner: Learner, shared: bool = True) -> None:
        self._learner = learner
        self._live = learner.params if shared else learner.params[:0]
        self._newest = self._live.detach().clone()
        self._spare = torch.empty_like(self._newest)
        self._pending = torch.zeros_like(self._newest)
        self._unapplied: list[int] = []
        self._step = learner.steps
        self._lent: Tensor | None = None
        self._lent_step = 0
        self.staleness: Counter[int] = Counter()

    def publish(self) -> None:
        """Training side, at the end of a step: apply corrections, publish a copy.

        Cost: reads 2P, writes 3P elements when corrections are pending, else P and P.
        """
        if self._unapplied:
            self._live.add_(self._pending)
            self._clear()
        self.refresh()

    def take(self, into: Tensor) -> bool:
        """Training side: move the pending corrections into `into` (P,).

        The caller has called `refresh`, and applies them before its step ends;
        meanwhile gossip may bring others. Returns False, `into` untouched, if there
        are none.
        """
        if not self._unapplied:
            return False
        into.copy_(self._pending)
        self._clear()
        return True

    def _clear(self) -> None:
        self._pending.zero_()
        steps = self._learner.steps
        self.staleness.update(steps - step for step in self._unapplied)
        self._unapplied.clear()

    def refresh(self) -> None:
        """Training side: publish a copy that has the pending corrections already.

        They stay pending: the live parameters do not change.
        """
        if self._lent is self._newest:
            self._newest, self._spare = self._spare, self._newest
        self._newest.copy_(self._live)
        if self._unapplied:
            self._newest.add_(self._pending)
        self._step = self._learner.steps

    def lend(self) -> Tensor:
        """Gossip side: return the newest copy; it stays unchanged until `correct`."""
        assert self._lent is None, "one exchange in flight per learner"
        self._lent, self._lent_step = self._newest, self._step
        return self._lent

    def correct(self, received: Tensor, weight: float = 0.5) -> None:
        """Gossip side: add weight * (received - sent) to the corrections.

        `received` is overwritten. The newest copy is corrected too, so that a learner
        that is asked twice before its step ends does not answer with the same value.
        """
        assert self._lent is not None, "lend() comes first"
        correction = received.sub_(self._lent).mul_(weight)
        self._pending.add_(correction)
        self._newest.add_(correction)
        self._unapplied.append(self._lent_step)
        self._lent = None

    def give_back(self) -> None:
        """Gossip side: end a loan without a correction."""
        self._lent = None

    def age(self) -> int:
        """Return the age, in own steps, of the copy in an exchange; 0 without one."""
        if self._lent is None:
            return 0
        return self._learner.steps - self._lent_step
