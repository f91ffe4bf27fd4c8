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

    Invariant: the newest copy is the live parameters as of the last `publish`, plus the
    pending corrections. Memory: 3 (P,) tensors.

    Attributes:
        staleness: how many own steps lay between a sent copy and the application of
            the correction computed from it -> how often.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._newest = learner.params.detach().clone()
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
        learner = self._learner
        if self._unapplied:
            learner.params.add_(self._pending)
            self._pending.zero_()
            self.staleness.update(learner.steps - step for step in self._unapplied)
            self._unapplied.clear()
        if self._lent is self._newest:
            self._newest, self._spare = self._spare, self._newest
        self._newest.copy_(learner.params)
        self._step = learner.steps

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
        """Return the age, in own steps, of the oldest exchange not yet applied."""
        steps = list(self._unapplied)
        if self._lent is not None:
            steps.append(self._lent_step)
        return self._learner.steps - min(steps, default=self._learner.steps)
