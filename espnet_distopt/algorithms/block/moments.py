"""The optimizer's moments at the end of a block (BMUF-Adam; Chen, Ding and Huo 2020).

Block momentum starts the next block k equivalent minibatches ahead of the mean of the
learners' parameters, but the mean of their moments is not ahead. Under the paper's
assumption that E[g] and E[g*g] are constant inside a block of tau steps, a moment m
with decay b is extrapolated by

    m_init = mbar + kappa (mbar - m_0),    kappa = b^tau (1 - b^k) / (1 - b^tau)

where mbar is the mean of the learners' moments and m_0 the moment at the start of the
block. The optimizer's step count, by which Adam corrects the bias of its moments,
advances by k. The momentum of SGD is the same kind of recursion and is extrapolated in
the same way. If a schedule changes the decay, the one at the end of the block counts,
in the mean over the learners.

While momentum sets in, first moments are extrapolated by w_n kappa, see `BlockFilter`,
because mbar - m_0 is noise and oscillation of the block as much as the drift that the
paper assumes, and to extrapolate amplifies them. With `warmup` m_init is the paper's.

m_init is the start m_0 of the next block. So all learners have the same starts, unless
a user loads moments. Nothing brings starts together again that differ: what one of them
is off by is multiplied by -kappa in each block, and kappa is above 1 where b is near 1.
So kappa must have the same bits on all learners. It is computed from decays that they
have agreed on, because one may be a step behind in a schedule that changes them.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.compression import Start, average_changes
from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.flat_moments import Moments, countable
from espnet_distopt.algorithms.block.options import MomentPolicy
from espnet_distopt.algorithms.block.part import BlockSummary, Lead, Part
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import SQUARES

MOMENTS_CHANGED = (
    "the state was saved with other `moments` or another optimizer; resume with the "
    "same, or remove the experiment's distopt/ folder to reset it"
)
"""What a user is told whose saved moments are not those of the options."""


class BlockMoments:
    """Averages, extrapolates or resets the moments of a part of the parameters.

    Memory: one tensor (P,) for each moment, two when moments are extrapolated or their
    changes are sent.

    Attributes:
        averaged: whether the learners average their moments.
        moments: the moments as flat buffers.
        loaded: whether the user has loaded this learner's moments since its last block
            ended, or the optimizer had a state when its first block began. The learners
            then have no common m_0 to extrapolate from. The caller ends the block with
            k = 0, so that all get the mean and are equal again.

    Args:
        policy: the treatment of the moments at the end of a block, but for `local`.
        part: the parameters whose moments they are.
        ranks: the learners that average their moments; None means all.
        changes_of: the period of the blocks whose changes are sent in bfloat16, see
            `compression`; None averages the moments as they are. Where changes are
            sent, m_0 stays equal on all learners, even if one loads other moments.

    Raises:
        InputError: the optimizer's moments are not known.
    """

    def __init__(
        self,
        policy: MomentPolicy,
        part: Part,
        ranks: Ranks = None,
        changes_of: int | None = None,
    ) -> None:
        self._policy = policy
        self._ranks = ranks
        self._rounds = changes_of is not None
        self._period = changes_of or 0
        self.averaged = policy != "reset"
        self._params, self._tensors = part.params, len(part.slots)
        self.moments = Moments(part)
        self._decays = self.moments.named(self.moments.numbers())
        self._strength = 0.0
        self._unequal = False
        self.loaded = bool(part.optimizer.state)
        self._begin(kept=self.loaded)
        part.optimizer_loaded.append(self._begin_with_loaded)

    def _begin(self, kept: bool) -> None:
        """Begin a block, and remember the moments and step counts at its start."""
        self._steps = self.moments.steps()
        self._starts: dict[str, Tensor] = {}
        if self._policy == "extrapolate" and kept and not self._rounds:
            self._starts = {n: flat.clone() for n, flat in self.flats().items()}

    def _begin_with_loaded(self) -> None:
        """Begin a block with the moments that the user has loaded."""
        self.loaded = True
        if not self._rounds:
            self._begin(kept=True)

    def notice_cleared(self) -> None:
        """Count it as loading another state if the user has cleared the optimizer's.

        No hook tells of that, but then a step count has fallen since the block's start.
        """
        both = zip(self.moments.steps(), self._steps, strict=False)
        if any(now < before for now, before in both):
            self._begin_with_loaded()

    def flats(self) -> dict[str, Tensor]:
        """Return the live moments, name -> (P,), which the optimizer updates."""
        self.moments.adopt()
        return self.moments.flat

    def end_block(self, summary: BlockSummary, lead: Lead, batches: int = 1) -> Program:
        """End a block: the moments of all learners become the same.

        Args:
            summary: what the learners know of the block.
            lead: the way from the mean to the next start point.
            batches: the number of workers' batches for which Adam's second moment is
                corrected; 1 if it is not.
        """
        self._agree(summary, lead)
        flats = self.flats()
        if not flats:
            return
        rounds = self._rounds and not summary.loaded
        for name, flat in flats.items() if self.averaged else ():
            if rounds:
                yield from average_changes(flat, self._start_of(name), self._ranks)
            else:
                yield AllReduceMean(flat, self._ranks)
        ahead, taus = self._ahead(summary, lead.k), self._updates(summary)
        for name, flat in flats.items():
            for place, group, tau in self.moments.runs(taus):
                mean = flat[place]
                new = self._next_start(name, mean, place, group, (tau, ahead * tau))
                if new is not mean:
                    mean.copy_(new)
        if self._policy == "reset":
            self.moments.forget_average()
        before = self.moments.steps()
        self.moments.set_steps(self._next_steps(summary, taus, ahead))
        self._steps = self.moments.steps()
        self._share_noise(before, self._steps, batches)
        self.loaded = False

    def begin_late(self) -> dict[str, Tensor]:
        """Return the live moments whose delayed average begins."""
        flats = self.flats()
        self.loaded = self.loaded and not flats
        return flats

    def starts(self) -> dict[str, Start]:
        """Return the starts since which changes are sent; empty if there are none."""
        if not self._rounds or not self.averaged or self._unequal:
            return {}
        return {name: self._start_of(name) for name in self.flats()}

    def end_late(
        self,
        late: LateAverage,
        summary: BlockSummary,
        lead: Lead,
        updates: int,
        batches: int = 1,
    ) -> None:
        """End a block whose average was delayed, see `delayed`.

        Moments that were loaded since the snapshot stay as they are until the end of
        the next block, and so do those that the optimizer has had only since then. If
        they were loaded before it and learners send changes, so that what arrives is no
        mean, all keep theirs, and the next block's end sends them as they are.

        Args:
            late: the delayed average.
            summary: what the learners know of the block. If it has no update, the
                average is not taken.
            lead: the way from the mean to the next start point.
            updates: number of updates of this learner since the snapshot.
            batches: as for `end_block`.
        """
        if summary.tau <= 0:
            self.loaded = self.loaded or summary.loaded > 0
            return
        self.notice_cleared()
        self._agree(summary, lead)
        flats = {name: flat for name, flat in self.flats().items() if late.has(name)}
        if not flats:
            return
        unequal, self._unequal = self._unequal, False
        rounded = self._rounds and self.averaged and not unequal
        if rounded and summary.loaded:
            self._unequal = True
            return
        if self.loaded and not self._rounds:
            return
        ahead = 0.0 if unequal else self._ahead(summary, lead.k)
        taus = self._updates(summary)
        started = self._next_steps(summary, taus, ahead)
        then = late.message[len(late.message) - len(summary.steps) :].tolist()
        live = zip(self.moments.steps(), then, strict=True)
        since = [max(0, round(now - before)) for now, before in live]
        both = list(zip(taus, since or [updates] * len(taus), strict=True))
        for name, flat in flats.items():
            snapshot, average = late.pair(name)
            for place, group, (tau, j) in self.moments.runs(both):
                share = self.moments.decays[name][group] ** j
                mean, counts = average[place], (tau, ahead * tau)
                new = self._next_start(name, mean, place, group, counts)
                if self.loaded:
                    continue
                if j == 0:
                    flat[place] = new
                    continue
                replace_late(flat[place], new, snapshot[place], share, name == SQUARES)
        if self._policy == "reset":
            self.moments.forget_average()
        # All learners must have the same counts, and the live ones are rounded anew.
        self._steps = started
        if not self.loaded:
            now = [s + j for s, j in zip(started, since, strict=True)]
            self.moments.set_steps(now)
            self._share_noise(then, started, batches)

    def _share_noise(
        self, before: Sequence[float], after: Sequence[float], batches: int
    ) -> None:
        """Note an average of first moments, if second moments are corrected."""
        if batches > 1 and self.averaged and "exp_avg" in self.moments.flat:
            self.moments.share_noise(before, after, batches)

    # The moments at the start of a block

    def _start(self, name: str) -> Tensor:
        """Return a moment at the start of the block (P,)."""
        if name not in self._starts:  # The optimizer's first block starts from zeros.
            self._starts[name] = torch.zeros_like(self._params)
        return self._starts[name]

    def _agree(self, summary: BlockSummary, lead: Lead) -> None:
        """Take what is the same on all learners at the end of a block."""
        self._decays = self.moments.named(summary.decays)
        self._strength = lead.strength

    def _start_of(self, name: str) -> Start:
        """Return what computes a start as a block without gradients would leave it.

        The decays are those that are agreed on now, so that it has the same bits on all
        learners.
        """
        factors = [decay**self._period for decay in self._decays[name]]
        return partial(self._decayed, name, factors)

    def _decayed(self, name: str, factors: Sequence[float]) -> Tensor:
        decayed = self._start(name).clone()
        for place, group, _ in self.moments.runs([0.0] * self._tensors):
            decayed[place].mul_(factors[group])
        return decayed

    def _ahead(self, summary: BlockSummary, k: float) -> float:
        """Return by how many of their steps in the block moments are extrapolated."""
        return k / summary.tau if self._policy == "extrapolate" else 0.0

    def _next_start(
        self,
        name: str,
        mean: Tensor,
        place: slice,
        group: int,
        counts: tuple[float, float],
    ) -> Tensor:
        """Start the next block at m_init, and return it.

        `mean` is a piece of the averaged moment, which may be overwritten or returned;
        `counts` are its number of updates in the block, and k.
        """
        if self._policy == "reset":
            return mean.zero_()
        if self._policy != "extrapolate" and not self._rounds:
            return mean
        (tau, k), decay = counts, self._decays[name][group]
        gain = extrapolation_gain(decay, tau, k)
        if name != SQUARES:
            gain *= self._strength
        # A second moment is a mean of squares, and must not become negative.
        bounded = name == SQUARES and gain != 0
        start = self._start(name)[place]
        extrapolate(mean, start, gain, decay ** (tau + k) if bounded else None)
        return start

    # The step counts, by which Adam corrects the bias of its moments

    def _updates(self, summary: BlockSummary) -> list[float]:
        """Return the number of updates of each parameter in the block."""
        before = self._steps or [0.0] * len(summary.steps)
        taus = [now - then for now, then in zip(summary.steps, before, strict=True)]
        return taus or [summary.tau] * self._tensors

    def _next_steps(
        self, summary: BlockSummary, taus: Sequence[float], ahead: float
    ) -> list[float]:
        """Return the counts at the next start point; empty if there are none."""
        if self._policy == "reset":
            return [0.0] * len(summary.steps)
        # Without step counts there are still as many taus as parameters.
        counted = zip(summary.steps, taus[: len(summary.steps)], strict=True)
        return countable([steps + ahead * tau for steps, tau in counted])

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and step counts at the start of the block."""
        return {
            "policy": self._policy,
            "steps": list(self._steps),
            "starts": {name: start.clone() for name, start in self._starts.items()},
            "decays": dict(self._decays),
            "loaded": self.loaded,
            "unequal": self._unequal,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: the state was saved with another policy or optimizer.
        """
        known = self.moments.decays.keys()
        if state.get("policy") != self._policy or not state["starts"].keys() <= known:
            raise InputError(MOMENTS_CHANGED)
        self._steps = list(state["steps"])
        starts = state["starts"].items()
        self._starts = {n: start.to(self._params, copy=True) for n, start in starts}
        self._decays = state["decays"]
        # To resume loads the optimizer's state, too: that does not count as loaded.
        self.loaded, self._unequal = state["loaded"], state["unequal"]


def extrapolation_gain(decay: float, tau: float, k: float) -> float:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau), computed without cancellation.

    As the decay tends to 1, kappa tends to k / tau, by which the parameters are
    extrapolated.
    """
    if tau <= 0 or k <= 0 or decay <= 0:
        return 0.0
    if decay == 1:
        return k / tau
    log = math.log(decay)
    return math.exp(tau * log) * math.expm1(k * log) / math.expm1(tau * log)


def extrapolate(mean: Tensor, start: Tensor, gain: float, floor: float | None) -> None:
    """Overwrite a piece of a moment's start by that of the next block, m_init.

    All learners must get the same bits on any processor. So these are operations that
    round once each; `lerp` and `alpha` would fuse a product and a sum, on some
    processors.

    Because E[g*g] >= 0, the second moment is at least `floor` times its start. Exact
    arithmetic respects that bound; rounding, and gradients that vanish, do not.

    Args:
        mean: mbar.
        start: m_0, which becomes m_init.
        gain: kappa.
        floor: the bound's factor; None for a moment without a bound.
    """
    bound = None if floor is None else start.mul(floor)
    if gain == 0:
        start.copy_(mean)
    else:
        torch.sub(mean, start, out=start).mul_(gain).add_(mean)
    if bound is not None:
        torch.maximum(start, bound, out=start)


def replace_late(
    live: Tensor, new: Tensor, old: Tensor, share: float, positive: bool
) -> None:
    """Add `share` times (`new` - `old`) to a piece of `live`.

    Args:
        live: the moment now, which is changed in place; it may be of higher precision.
        new: the averaged moment, which replaces the snapshot.
        old: the moment at the snapshot.
        share: the share b^j of the snapshot that is left after j updates.
        positive: whether the moment is never negative.
    """
    live.sub_(old, alpha=share)
    if positive:
        live.clamp_(min=0)  # Rounding may make it negative.
    live.add_(new.to(live.dtype), alpha=share)
