"""The optimizer's moments at the end of a block (BMUF-Adam; Chen, Ding and Huo 2020).

Block momentum starts the next block k equivalent minibatches ahead of the mean of the
learners' parameters, but the mean of their moments is not ahead. Under the paper's
assumption that E[g] and E[g*g] are constant inside a block of tau steps, a moment m
with decay b is extrapolated by

    m_init = mbar + kappa (mbar - m_0),    kappa = b^tau (1 - b^k) / (1 - b^tau)

where mbar is the mean of the learners' moments and m_0 the moment at the start of the
block. The optimizer's step count, by which Adam corrects the bias of its moments,
advances by k. The momentum of SGD is the same kind of recursion and is extrapolated in
the same way. If a schedule changes the decay, the one at the end of the block counts.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.flat_moments import Moments
from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import NOISE

SQUARES = "exp_avg_sq"
"""The name of Adam's second moment, which is never negative."""

Fate = Literal["extrapolate", "average", "reset"]
"""The treatment of the moments at the end of a block."""


def extrapolation_gain(decay: float, tau: float, k: float) -> float:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau), computed without cancellation.

    As the decay tends to 1, kappa tends to k / tau, by which the parameters are
    extrapolated.

    Args:
        decay: the moment's decay b, in [0, 1].
        tau: number of updates in the block.
        k: equivalent minibatches between the mean and the next start point.
    """
    if tau <= 0 or k <= 0 or decay <= 0:
        return 0.0
    if decay == 1:
        return k / tau
    log = math.log(decay)
    return math.exp(tau * log) * math.expm1(k * log) / math.expm1(tau * log)


class BlockMoments:
    """Averages, extrapolates or resets the moments of one learner.

    Memory: one tensor (P,) for each moment, two when moments are extrapolated.

    Attributes:
        averaged: whether the learners average their moments.
        loaded: whether the user has loaded this learner's moments since its last block
            ended. If one learner's were loaded, the learners have no common m_0 to
            extrapolate from. The caller then ends the block with k = 0, so that all get
            the mean and are equal again.

    Args:
        fate: the treatment of the moments at the end of a block.
        learner: the learner whose optimizer has the moments.
        ranks: the learners that average their moments; None means all.

    Raises:
        InputError: the optimizer's moments are not known.
    """

    def __init__(self, fate: Fate, learner: Learner, ranks: Ranks = None) -> None:
        self._fate = fate
        self._ranks = ranks
        self.averaged = fate != "reset"
        self._tensors = len(learner.slots)
        self._params = learner.params
        self._moments = Moments(learner)
        self.loaded = False
        self._begin(bool(learner.optimizer.state))
        learner.optimizer_loaded.append(self._begin_with_loaded)

    def _begin(self, kept: bool) -> None:
        """Begin a block, and remember the moments and step counts at its start.

        Args:
            kept: whether the optimizer has a state whose moments are to be remembered.
        """
        self._steps = self._moments.steps()
        self._init: dict[str, Tensor] = {}
        if self._fate == "extrapolate" and kept:
            self._init = {name: flat.clone() for name, flat in self.flats().items()}

    def _begin_with_loaded(self) -> None:
        """Begin a block with the moments that the user has loaded."""
        self.loaded = True
        self._begin(kept=True)

    def steps(self) -> list[float]:
        """Return each parameter's step count, for the learners to average."""
        return self._moments.steps()

    def flats(self) -> dict[str, Tensor]:
        """Return the live moments, name -> (P,), which the optimizer updates."""
        self._moments.adopt()
        return self._moments.flat

    def end_block(self, steps: list[float], tau: float, k: float) -> Program:
        """End a block: the moments of all learners become the same.

        Args:
            steps: the mean of the learners' step counts, for each parameter.
            tau: the mean of their numbers of updates in the block.
            k: equivalent minibatches between the mean and the next start point.
        """
        flats = self.flats()
        if self.averaged:
            for flat in flats.values():
                yield AllReduceMean(flat, self._ranks)
        self._moments.set_steps(self._reset_or_extrapolate(flats, steps, tau, k))
        self._steps = self._moments.steps()
        self.loaded = False

    def begin_late(self) -> dict[str, Tensor]:
        """Return the live moments, whose delayed average begins."""
        self.loaded = False
        return self.flats()

    def end_late(
        self,
        late: LateAverage,
        then: list[float],
        steps: list[float],
        tau: float,
        k: float,
        updates: int,
    ) -> None:
        """End a block whose average was delayed, see `delayed`.

        Moments that were loaded since the snapshot stay as they are until the end of
        the next block.

        Args:
            late: the delayed average.
            then: this learner's step count of each parameter at the snapshot.
            steps: the mean of the learners' step counts, for each parameter.
            tau: the mean of their numbers of updates in the block.
            k: equivalent minibatches between the mean and the next start point.
            updates: number of updates of this learner since the snapshot.
        """
        if self.loaded:
            return
        flats = self.flats()
        if self.averaged:
            averages = dict(zip(flats, late.averages[2:], strict=True))
        else:
            averages = {name: torch.empty_like(flat) for name, flat in flats.items()}
        started = self._reset_or_extrapolate(averages, steps, tau, k)
        since = [now - s for now, s in zip(self._moments.steps(), then, strict=True)]
        runs = self._moments.runs(since or [updates] * self._tensors)
        for name, flat in flats.items():
            new, old = averages[name], late.moments[name]
            decays = self._moments.decays[name]
            for part, group, j in runs:
                if j == 0:
                    flat[part] = new[part]
                    continue
                share, positive = decays[group] ** j, name == SQUARES
                _replace(flat[part], new[part], old[part], share, positive)
        self._moments.set_steps([s + j for s, j in zip(started, since, strict=True)])
        counts = zip(self._moments.steps(), since, strict=True)
        self._steps = [now - j for now, j in counts]

    def _reset_or_extrapolate(
        self, flats: dict[str, Tensor], steps: list[float], tau: float, k: float
    ) -> list[float]:
        """Reset or extrapolate averaged moments in place; return their step counts."""
        if self._fate == "reset":
            for flat in flats.values():
                flat.zero_()
            self._moments.forget(NOISE)
            return [0.0] * len(steps)
        if self._fate == "extrapolate":
            before = self._steps or [0.0] * len(steps)
            taus = [now - then for now, then in zip(steps, before, strict=True)]
            ahead = k / tau
            self._extrapolate(flats, taus or [tau] * self._tensors, ahead)
            steps = [s + ahead * t for s, t in zip(steps, taus, strict=True)]
        return steps

    def _extrapolate(
        self, flats: dict[str, Tensor], taus: list[float], ahead: float
    ) -> None:
        """Extrapolate moments over k = `ahead` tau steps, in place.

        A parameter without a gradient in some steps of the block has a tau of its own.

        Args:
            flats: the averaged moments, name -> (P,).
            taus: number of updates of each parameter in the block.
            ahead: k / tau.
        """
        for name, flat in flats.items():
            if name not in self._init:  # The optimizer's first block starts from zeros.
                self._init[name] = torch.zeros_like(flat)
            decays = self._moments.decays[name]
            for part, group, tau in self._moments.runs(taus):
                decay = decays[group]
                k = ahead * tau
                gain = extrapolation_gain(decay, tau, k)
                floor = decay ** (tau + k) if name == SQUARES else None
                _extrapolate_from(flat[part], self._init[name][part], gain, floor)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and step counts at the start of the block."""
        init = {name: tensor.clone() for name, tensor in self._init.items()}
        return {
            "fate": self._fate,
            "steps": list(self._steps),
            "init": init,
            "loaded": self.loaded,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: the state was saved with another fate or optimizer.
        """
        unknown = set(state["init"]) - set(self._moments.decays)
        if state.get("fate") != self._fate or unknown:
            raise InputError(
                "the state was saved with other `moments` or another optimizer; resume "
                "with the same, or remove the experiment's distopt/ folder to reset it"
            )
        self.loaded = False
        self._steps = list(state["steps"])
        # To resume loads the optimizer's state, too: that does not count as loaded.
        self.loaded = state.get("loaded", False)
        init = state["init"].items()
        self._init = {name: t.to(self._params, copy=True) for name, t in init}


def _extrapolate_from(
    moment: Tensor, start: Tensor, gain: float, floor: float | None
) -> None:
    """Extrapolate a moment in place from its start, and copy the result to the start.

    Because E[g*g] >= 0, the second moment is at least `floor` times its start. Exact
    arithmetic respects that bound; rounding, and gradients that vanish, do not.

    Args:
        moment: mbar, which becomes m_init.
        start: m_0, which becomes m_init as well, for the next block.
        gain: kappa.
        floor: the bound's factor; None for a moment without a bound.
    """
    for m, s in cache_blocks(moment, start):
        if gain != 0:
            m.mul_(1 + gain).sub_(s, alpha=gain)
            if floor is not None:
                torch.maximum(m, s.mul_(floor), out=m)
        s.copy_(m)


def _replace(
    live: Tensor, new: Tensor, old: Tensor, share: float, positive: bool
) -> None:
    """Add `share` times (`new` - `old`) to `live`.

    Args:
        live: the moment now, which is changed in place.
        new: the averaged moment, which replaces the snapshot.
        old: the moment at the snapshot.
        share: the share b^j of the snapshot that is left after j updates.
        positive: whether the moment is never negative.
    """
    for moment, n, o in cache_blocks(live, new, old):
        moment.sub_(o, alpha=share).add_(n, alpha=share)
        if positive:
            moment.clamp_(min=0)  # Rounding may make it negative.
