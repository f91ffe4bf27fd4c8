"""The published copy of a learner's parameters: all that gossip ever touches.

The live parameters belong to the training side alone, so no layer ever sees a model
that changes under it. At the end of each step the training side applies the pending
corrections and publishes a new copy; the gossip side sends published copies and hands
over corrections.

Lian et al. 2018 (AD-PSGD), in delta form: the two corrections of a pair are exact
negatives of each other in IEEE arithmetic, so the sum over the learners is conserved
whatever the optimizer does in between.

Drivers never run two of these methods at the same time, but for what the gossip side
yields as `Aside`: whatever passes over P elements on its account. So the training side
waits for pointers that change hands, and for nothing else.
"""

from collections import Counter
from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.effects import Aside, Program
from espnet_distopt.learner import Learner
from espnet_distopt.pieces import pieces

HALF = 0.5
"""The share of a difference by which both ends of an exchange move."""


class Published:
    """Double-buffered copy of `learner.params`, and the corrections not yet applied.

    Invariant: the newest copy is the live parameters as of the last `publish`, `take`
    or `refresh`, plus all corrections handed over since, or (`_behind`) lacks exactly
    the pending ones. A correction is kept as the difference that it is half of.
    Memory: 4 (P,) tensors (two copies; a difference pending and one on its way), or
    nothing; a fifth while one that was taken is in use.

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
        self._other = torch.empty_like(self._newest)
        self._behind = False
        self._lent: Tensor | None = None
        self._lent_step = 0
        self._step = learner.steps
        self._pending: Tensor | None = None
        self._pending_steps: list[int] = []
        self._held: Tensor | None = None
        self._merging_steps: list[int] = []
        self._free: list[Tensor] = []
        self.staleness: Counter[int] = Counter()

    # Training side

    def publish(self) -> None:
        """At the end of a step: apply corrections, publish a copy.

        Cost: reads 2P, writes 2P elements when corrections are pending, else P and P.
        """
        self._behind = False
        newest = self._renew()
        if self._pending is None:
            newest.copy_(self._live)
            return
        for live, pending, new in pieces(self._live, self._pending, newest):
            new.copy_(live.add_(pending, alpha=HALF))
        self.recycle(self._applied())

    def take(self) -> Tensor | None:
        """Publish a copy that is corrected already; return what has corrected it.

        That is a difference (P,), None if there is none. The caller adds `HALF` of it
        to the live parameters before its step ends, and gives it to `recycle`;
        meanwhile gossip may bring others. Cost: as `publish`, without the live ones.
        """
        self._behind = False
        if self._pending is None:
            self._renew().copy_(self._live)
            return None
        torch.add(self._live, self._pending, alpha=HALF, out=self._renew())
        return self._applied()

    def refresh(self) -> None:
        """Publish a copy, in a wait before the step ends; corrections stay pending."""
        self._renew().copy_(self._live)
        self._behind = self._pending is not None

    def recycle(self, taken: Tensor) -> None:
        """Give back what `take` has returned: gossip will overwrite it."""
        self._free.append(taken)

    def _renew(self) -> Tensor:
        """Return the copy to overwrite, which becomes the newest: one not lent."""
        if self._lent is self._newest:
            self._newest, self._other = self._other, self._newest
        self._step = self._learner.steps
        return self._newest

    def _applied(self) -> Tensor:
        """Return what is pending; from now on nothing is."""
        assert self._pending is not None
        difference, self._pending = self._pending, None
        steps = self._learner.steps
        self.staleness.update(steps - step for step in self._pending_steps)
        self._pending_steps = []
        return difference

    def age(self) -> int:
        """Return the age, in own steps, of the oldest copy that is still in use.

        In an exchange, or in a correction that the training side cannot apply yet.
        """
        steps = list(self._merging_steps)
        if self._lent is not None:
            steps.append(self._lent_step)
        return self._learner.steps - min(steps, default=self._learner.steps)

    def unapplied(self) -> list[Tensor]:
        """Return the differences not yet in the live parameters, which lack half."""
        both = [self._pending, self._held]
        return [difference for difference in both if difference is not None]

    def in_newest(self) -> list[Tensor]:
        """Return those of `unapplied` that are in the newest copy."""
        pending = [] if self._behind else [self._pending]
        held = [self._held] if self._newest is self._lent else []
        return [one for one in pending + held if one is not None]

    # Gossip side

    def lend(self) -> Generator[Aside, Any, Tensor]:
        """Return the newest copy; it stays unchanged until `correct`."""
        assert self._lent is None, "one exchange in flight per learner"
        lent = self._lent = self._newest
        self._lent_step = self._step
        if self._behind and self._pending is not None:
            self._behind = False
            yield Aside(partial(lent.add_, self._pending, alpha=HALF))
        return lent

    def spare(self) -> Tensor:
        """Return (P,) of anything, for the difference that `correct` will be given."""
        return self._free.pop() if self._free else torch.empty_like(self._newest)

    def correct(self, received: Tensor, sent: Tensor | None = None) -> Program:
        """Hand over the correction (received - sent) / 2.

        The newest copy is corrected too, so that a learner that is asked twice before
        its step ends does not answer with the same value.

        Args:
            received: becomes the difference, and is from `spare`; unless `sent` is
                given.
            sent: what the peer has received; None: the lent copy.
        """
        lent = self._lent
        assert lent is not None, "lend() comes first"
        difference = received if sent is None else self.spare()
        self._held = difference
        into = lent if self._newest is lent else None
        operands = received, lent if sent is None else sent
        yield Aside(partial(_subtract, *operands, difference, into))
        if self._pending is not None:
            earlier, self._pending = self._pending, None
            self._merging_steps, self._pending_steps = self._pending_steps, []
            yield Aside(partial(difference.add_, earlier))
            self._free.append(earlier)
        self._pending, self._held = difference, None
        self._pending_steps = [*self._merging_steps, self._lent_step]
        self._merging_steps = []
        # What was published meanwhile has nothing of it, nor of what was merged.
        self._behind = self._newest is not lent
        self._lent = None

    def give_back(self) -> None:
        """End a loan without a correction."""
        self._lent = None


def _subtract(
    received: Tensor, sent: Tensor, difference: Tensor, copy: Tensor | None
) -> None:
    """Write received - sent to `difference`, maybe in place; correct `copy`."""
    corrected = difference if copy is None else copy
    for d, r, s, c in pieces(difference, received, sent, corrected):
        if r.dtype == d.dtype:
            torch.sub(r, s, out=d)
        else:
            d.copy_(r).sub_(s.to(d.dtype))  # mixed types take several times as long
        if copy is not None:
            c.add_(d, alpha=HALF)
