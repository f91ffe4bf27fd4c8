"""The published copy of a learner's parameters: all that gossip ever touches.

The live parameters belong to the training side alone, so no layer ever sees a model
that changes under it. At the end of each step the training side applies the pending
corrections and publishes a new copy; the gossip side sends published copies and hands
over corrections.

Lian et al. 2018 (AD-PSGD), in delta form: the two corrections of a pair are exact
negatives of each other in IEEE arithmetic, so the sum over the learners is conserved
whatever the optimizer does in between.

Drivers never run two of these methods at the same time, but for what the gossip side
yields as `RunInBackground`: whatever passes over P elements on its account. So the
training side waits for pointers that change hands, and for nothing else.
"""

from collections import Counter
from functools import partial

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import Program, RunInBackground
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.core.learner import Learner

HALF = 0.5
"""The share of a difference by which both ends of an exchange move."""


class Snapshot:
    """Copy of `learner.params`, and the corrections not yet applied to them.

    Invariant: the copy is the live parameters as of the last `publish` or `take` that
    found it at home, plus all corrections that came since. While it is lent nobody
    writes to it: a step costs no pass over it, however long an exchange takes.
    A correction is kept as the difference that it is half of.
    Memory: 2 (P,) tensors (the copy; a difference that is on its way or pending), or
    nothing; a third while a difference is on its way and another one still in use.

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
        self._copy = self._live.detach().clone()
        self._step = learner.steps
        self._lent = False
        self._pending: Tensor | None = None
        self._pending_steps: list[int] = []
        self._held: Tensor | None = None
        self._merging_steps: list[int] = []
        self._free: list[Tensor] = []
        self.staleness: Counter[int] = Counter()

    # Training side

    def publish(self) -> None:
        """At the end of a step: apply corrections; publish, if the copy is at home.

        Cost: reads 2P, writes 2P elements when corrections are pending, else P and P;
        while the copy is lent, 2P and P, else nothing.
        """
        copy = self._renewed()
        if self._pending is None:
            if copy is not None:
                copy.copy_(self._live)
            return
        if copy is None:
            self._live.add_(self._pending, alpha=HALF)
        else:
            for live, pending, new in cache_blocks(self._live, self._pending, copy):
                new.copy_(live.add_(pending, alpha=HALF))
        self.recycle(self._applied())

    def take(self) -> Tensor | None:
        """Publish what will be corrected already; return what is to correct it.

        That is a difference (P,), None if there is none. The caller adds `HALF` of it
        to the live parameters before its step ends, and gives it to `recycle`;
        meanwhile gossip may bring others. Cost: as `publish`, without the live ones.
        """
        copy = self._renewed()
        if self._pending is None:
            if copy is not None:
                copy.copy_(self._live)
            return None
        if copy is not None:
            torch.add(self._live, self._pending, alpha=HALF, out=copy)
        return self._applied()

    def recycle(self, taken: Tensor) -> None:
        """Give back what `take` has returned: gossip will overwrite it."""
        self._free.append(taken)

    def _renewed(self) -> Tensor | None:
        """Return the copy, to be overwritten as of this step; None while it is lent."""
        if self._lent:
            return None
        self._step = self._learner.steps
        return self._copy

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
        if self._lent:
            steps.append(self._step)
        return self._learner.steps - min(steps, default=self._learner.steps)

    def unapplied(self) -> list[Tensor]:
        """Return the differences not in the live parameters, which lack half of each.

        All of them are in the copy.
        """
        both = [self._pending, self._held]
        return [difference for difference in both if difference is not None]

    def state(self, max_age: int) -> GossipState:
        """Return what others see and what is unapplied; the tensors are not copied."""
        return GossipState(
            copy=None if self.outdated else self._copy,
            differences=self.unapplied(),
            weight=HALF,
            age=max(self.age(), *self.staleness, 0),
            max_age=max_age,
        )

    # Gossip side

    @property
    def outdated(self) -> bool:
        """Whether the training side has ended a step while the copy was lent."""
        return self._step < self._learner.steps

    def begin_exchange(self) -> Tensor:
        """Return the copy (P,); it stays unchanged until `correct`."""
        assert not self._lent, "one exchange in flight per learner"
        self._lent = True
        return self._copy

    def spare(self) -> Tensor:
        """Return (P,) of anything, for the difference that `correct` will be given."""
        return self._free.pop() if self._free else torch.empty_like(self._copy)

    def end_exchange(self, received: Tensor, sent: Tensor | None = None) -> Program:
        """Hand over the correction (received - sent) / 2; ends the loan.

        The copy is corrected too, so that a learner that is asked twice before its
        step ends does not answer with the same value.

        Args:
            received: becomes the difference, and is from `spare`; unless `sent` is
                given.
            sent: what the peer has received; None: the copy.
        """
        assert self._lent, "lend() comes first"
        difference = received if sent is None else self.spare()
        self._held = difference
        operands = received, self._copy if sent is None else sent
        yield RunInBackground(partial(_subtract, *operands, difference, self._copy))
        if self._pending is not None:
            earlier, self._pending = self._pending, None
            self._merging_steps, self._pending_steps = self._pending_steps, []
            yield RunInBackground(partial(difference.add_, earlier))
            self._free.append(earlier)
        self._pending, self._held = difference, None
        self._pending_steps = [*self._merging_steps, self._step]
        self._merging_steps = []
        self._lent = False


def _subtract(received: Tensor, sent: Tensor, difference: Tensor, copy: Tensor) -> None:
    """Write received - sent to `difference`, maybe in place; correct `copy`."""
    for d, r, s, c in cache_blocks(difference, received, sent, copy):
        if r.dtype == d.dtype:
            torch.sub(r, s, out=d)
        else:
            d.copy_(r).sub_(s.to(d.dtype))  # mixed types take several times as long
        c.add_(d, alpha=HALF)
