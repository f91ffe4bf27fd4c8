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
in the mean over the learners (see `moment_starts`).
"""

from collections.abc import Container, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.bfloat16 import average_changes
from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.extrapolation import replace_late
from espnet_distopt.algorithms.block.flat_moments import Moments
from espnet_distopt.algorithms.block.message import Agreed
from espnet_distopt.algorithms.block.moment_starts import MomentStarts
from espnet_distopt.algorithms.block.part import Part
from espnet_distopt.algorithms.block.step_counts import StepCounts
from espnet_distopt.core.cache_blocks import cache_slices
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import SQUARES

MOMENTS_CHANGED = (
    "the state was saved with other `moments` or another optimizer; resume with the "
    "same, or remove the experiment's distopt/ folder to reset it"
)
"""What a user is told whose saved moments are not those of the options."""

Fate = Literal["extrapolate", "average", "reset"]
"""The treatment of the moments at the end of a block."""


class BlockMoments:
    """Averages, extrapolates or resets the moments of a part of the parameters.

    Memory: one tensor (P,) for each moment, two when moments are extrapolated or their
    changes are sent, the second of which takes half as much in bfloat16.

    Attributes:
        averaged: whether the learners average their moments.
        counted: the number of step counts that they average.
        loaded: whether the user has loaded this learner's moments since its last block
            ended, or the optimizer had a state when its first block began. The learners
            then have no common m_0 to extrapolate from. The caller ends the block with
            k = 0, so that all get the mean and are equal again.

    Args:
        fate: the treatment of the moments at the end of a block.
        part: the parameters whose moments they are.
        ranks: the learners that average their moments; None means all.
        changes_of: the period of the blocks whose changes are sent in bfloat16, see
            `bfloat16`; None averages the moments as they are. Where changes are sent,
            m_0 stays equal on all learners, even if one of them loads other moments.
        every: the number of blocks from one average of a moment to the next, for the
            first moment and for the second.
        starts_in: the precision in which moments at a block's start are kept; None is
            that of the parameters.

    Raises:
        InputError: the optimizer's moments are not known.
    """

    def __init__(
        self,
        fate: Fate,
        part: Part,
        ranks: Ranks = None,
        changes_of: int | None = None,
        every: tuple[int, int] = (1, 1),
        starts_in: torch.dtype | None = None,
    ) -> None:
        self._fate = fate
        self._ranks = ranks
        self._rounds = changes_of is not None
        self._period = changes_of or 0
        self._every, self._blocks = every, 0
        self.averaged = fate != "reset"
        self._counts = StepCounts(len(part.slots), resets=fate == "reset")
        self._moments = Moments(part)
        self.counted = self._moments.counted
        dtype = starts_in or part.params.dtype
        self._starts = MomentStarts(part, self._moments, dtype)
        self._unequal = False
        self.loaded = bool(part.optimizer.state)
        self._begin(kept=self.loaded)
        part.optimizer_loaded.append(self._begin_with_loaded)

    def _begin(self, kept: bool) -> None:
        """Begin a block, and remember the moments and step counts at its start.

        Args:
            kept: whether the optimizer has a state whose moments are to be remembered.
        """
        self._counts.at_start = self._moments.steps()
        self._starts.forget()
        if self._fate == "extrapolate" and kept and not self._rounds:
            self._starts.remember(self.flats())

    def _begin_with_loaded(self) -> None:
        """Begin a block with the moments that the user has loaded."""
        self.loaded = True
        if not self._rounds:
            self._begin(kept=True)

    def steps(self) -> list[float]:
        """Return each parameter's step count, for the learners to average."""
        return self._moments.steps()

    def decays(self) -> list[float]:
        """Return the decays of the moments, for the learners to average."""
        return self._moments.numbers()

    def notice_cleared(self) -> None:
        """Count it as loading another state if the user has cleared the optimizer's.

        No hook tells of that, but then a step count has fallen since the block's start.
        """
        if self._counts.have_fallen(self._moments.steps()):
            self._begin_with_loaded()

    def flats(self) -> dict[str, Tensor]:
        """Return the live moments, name -> (P,), which the optimizer updates."""
        self._moments.adopt()
        return self._moments.flat

    def end_block(self, agreed: Agreed, k: float, batches: int = 1) -> Program:
        """End a block: the moments of all learners become the same.

        Args:
            agreed: what the learners know of the block.
            k: equivalent minibatches between the mean and the next start point.
            batches: the number of workers' batches for which Adam's second moment is
                corrected; 1 if it is not.
        """
        self._blocks += 1
        self._starts.agree(agreed.decays)
        flats = self._due()
        if not flats:
            return
        rounds = self._rounds and not agreed.loaded
        for name, flat in flats.items() if self.averaged else ():
            if rounds:
                start = self._starts.decayed(name, self._period)
                yield from average_changes(flat, start, self._ranks)
            else:
                yield AllReduceMean(flat, self._ranks)
        ahead, taus = self._ahead(agreed, k), self._counts.updates(agreed)
        for name, flat in flats.items():
            for part, group, tau in self._moments.runs(taus):
                for place in cache_slices(flat, part):
                    mean = flat[place]
                    new = self._move(name, mean, place, group, (tau, ahead * tau))
                    if new is not mean:
                        mean.copy_(new)
        if self._fate == "reset":
            self._moments.forget_noise()
        before = self._moments.steps()
        self._moments.set_steps(self._counts.at_next_start(agreed, taus, ahead))
        self._counts.at_start = self._moments.steps()
        self._share_noise(flats, before, self._counts.at_start, batches)
        self.loaded = False

    def _share_noise(
        self,
        flats: Container[str],
        before: Sequence[float],
        after: Sequence[float],
        batches: int,
    ) -> None:
        """Note an average of first moments, if second moments are corrected."""
        if batches > 1 and self.averaged and "exp_avg" in flats:
            self._moments.share_noise(before, after, batches)

    def _due(self) -> dict[str, Tensor]:
        """Return the live moments of `flats` that the end of this block is about."""
        return {
            name: flat
            for name, flat in self.flats().items()
            if self._blocks % self._every[name == SQUARES] == 0
        }

    def begin_late(self) -> dict[str, Tensor]:
        """Return the live moments whose delayed average begins; none in most blocks."""
        self._blocks += 1
        due = self._due()
        self.loaded = self.loaded and not due
        return due

    def cancel_late(self, agreed: Agreed) -> None:
        """Do not count a block without updates, whose delayed average is not taken.

        Args:
            agreed: what the learners know of the block.
        """
        self._blocks -= 1
        self.loaded = self.loaded or agreed.loaded

    def starts(self) -> dict[str, BlockStart]:
        """Return the starts since which changes are sent; empty if there are none."""
        if not self._rounds or not self.averaged or self._unequal:
            return {}
        return {name: self._starts.decayed(name, self._period) for name in self._due()}

    def end_late(
        self,
        late: LateAverage,
        agreed: Agreed,
        k: float,
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
            agreed: what the learners know of the block.
            k: equivalent minibatches between the mean and the next start point.
            updates: number of updates of this learner since the snapshot.
            batches: as for `end_block`.
        """
        self.notice_cleared()
        self._starts.agree(agreed.decays)
        flats = {name: flat for name, flat in self._due().items() if late.has(name)}
        if not flats:
            return
        unequal, self._unequal = self._unequal, False
        rounded = self._rounds and self.averaged and not unequal
        if rounded and agreed.loaded:
            self._unequal = True
            return
        if self.loaded and not self._rounds:
            return
        ahead = 0.0 if unequal else self._ahead(agreed, k)
        taus = self._counts.updates(agreed)
        started = self._counts.at_next_start(agreed, taus, ahead)
        then = late.message[len(late.message) - len(agreed.steps) :].tolist()
        live = zip(self._moments.steps(), then, strict=True)
        since = [max(0, round(now - before)) for now, before in live]
        both = list(zip(taus, since or [updates] * len(taus), strict=True))
        for name, flat in flats.items():
            for part, group, (tau, j) in self._moments.runs(both):
                share = self._moments.decays[name][group] ** j
                for place, old, mean in late.pieces(name, part):
                    new = self._move(name, mean, place, group, (tau, ahead * tau))
                    if self.loaded:
                        continue
                    if j == 0:
                        flat[place] = new
                        continue
                    replace_late(flat[place], new, old, share, name == SQUARES)
        if self._fate == "reset":
            self._moments.keep_noise_since(since)
        # All learners must have the same counts, and the live ones are rounded anew.
        self._counts.at_start = started
        if not self.loaded:
            now = [s + j for s, j in zip(started, since, strict=True)]
            self._moments.set_steps(now)
            self._share_noise(flats, then, started, batches)

    def _ahead(self, agreed: Agreed, k: float) -> float:
        """Return by how many of their steps in the block moments are extrapolated."""
        return k / agreed.tau if self._fate == "extrapolate" else 0.0

    def _move(
        self,
        name: str,
        mean: Tensor,
        part: slice,
        group: int,
        counts: tuple[float, float],
    ) -> Tensor:
        """Return a piece of m_init; it may be `mean` itself, or the start that is kept.

        Args:
            name: the moment's name.
            mean: a piece of the averaged moment, which may be overwritten.
            part: its place.
            group: the number of its parameters' group.
            counts: their number of updates in the block, and k.
        """
        if self._fate == "reset":
            return mean.zero_()
        if self._fate == "extrapolate" or self._rounds:
            return self._starts.move(name, mean, part, group, counts, self._blocks)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and step counts at the start of the block."""
        return {
            "fate": self._fate,
            "steps": list(self._counts.at_start),
            **self._starts.state_dict(),
            "loaded": self.loaded,
            "unequal": self._unequal,
            "blocks": self._blocks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: the state was saved with another fate or optimizer.
        """
        known = self._moments.decays.keys()
        if state.get("fate") != self._fate or not state["init"].keys() <= known:
            raise InputError(MOMENTS_CHANGED)
        self._counts.at_start = list(state["steps"])
        # To resume loads the optimizer's state, too: that does not count as loaded.
        self.loaded = state.get("loaded", False)
        self._unequal = state.get("unequal", False)
        self._blocks = state.get("blocks", 0)
        # Moments that have been rounded to nearest are not those of the optimizer.
        self.loaded |= not self._starts.load_state_dict(state)
