"""The optimizer's moments at the end of a block (BMUF-Adam; Chen, Ding and Huo 2020).

The start point of the next block lies k equivalent minibatches ahead of the mean of the
learners, but averaged moments do not. Under the paper's assumption that E[g] and E[g*g]
are constant inside a block of tau steps, a moment m with decay b is carried along by

    m_init = mbar + kappa (mbar - m_0),    kappa = b^tau (1 - b^k) / (1 - b^tau)

where m_0 was the moment at the start of the block; and the optimizer's step count, by
which Adam corrects the bias of its moments, advances by k. Momentum of SGD is the same
kind of recursion and is carried along in the same way. A schedule may change the decay:
what counts for a block is the one in force when it ends.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.flat_moments import Moments
from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

SQUARES = "exp_avg_sq"
"""Adam's second moment, which is never negative."""

Fate = Literal["extrapolate", "average", "reset"]


def extrapolation_gain(decay: float, tau: float, k: float) -> float:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau), computed without cancellation.

    Tends to k / tau as the decay tends to 1: the gain that the parameters get.
    """
    if tau <= 0 or k <= 0 or decay <= 0:
        return 0.0
    if decay == 1:
        return k / tau
    log = math.log(decay)
    return math.exp(tau * log) * math.expm1(k * log) / math.expm1(tau * log)


class BlockMoments:
    """Averages, extrapolates or resets the moments of one learner.

    Memory: one (P,) tensor a moment, two when they are extrapolated.

    Attributes:
        averaged: learners send their moments to each other.
        loaded: the user has loaded this learner's since its last block ended. Where one
            learner has, nobody knows where all of them began: the block is then to end
            with k = 0, which makes them equal again.

    Args:
        fate: what becomes of the moments at the end of a block.
        learner: whose moments.

    Raises:
        InputError: an optimizer whose moments are not known.
    """

    def __init__(self, fate: Fate, learner: Learner) -> None:
        self._fate = fate
        self.averaged = fate != "reset"
        self._tensors = len(learner.slots)
        self._params = learner.params
        self._moments = Moments(learner)
        self.loaded = False
        self._begin(bool(learner.optimizer.state))
        learner.optimizer_loaded.append(self._begin_with_loaded)

    def _begin(self, kept: bool) -> None:
        """Begin a block with the moments as they are; without `kept`, they are none."""
        self._steps = self._moments.steps()
        self._init: dict[str, Tensor] = {}
        if self._fate == "extrapolate" and kept:
            self._init = {name: flat.clone() for name, flat in self.flats().items()}

    def _begin_with_loaded(self) -> None:
        """Go on from moments that the user has loaded into the optimizer."""
        self.loaded = True
        self._begin(kept=True)

    def steps(self) -> list[float]:
        """Return each parameter's step count, for the learners to average."""
        return self._moments.steps()

    def flats(self) -> dict[str, Tensor]:
        """Return the moments, name -> (P,), which the optimizer goes on to update."""
        self._moments.adopt()
        return self._moments.flat

    def end_block(self, steps: list[float], tau: float, k: float) -> Program:
        """End a block: all learners' moments become the same.

        Args:
            steps: mean step count of each parameter.
            tau: mean number of updates in the block.
            k: equivalent minibatches between the mean and the next start point.
        """
        flats = self.flats()
        if self.averaged:
            for flat in flats.values():
                yield AllReduceMean(flat)
        self._moments.set_steps(self._carry(flats, steps, tau, k))
        self._steps = self._moments.steps()
        self.loaded = False

    def begin_late(self) -> dict[str, Tensor]:
        """Return the moments whose average begins."""
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
        """End a block whose average comes late, see `block_late`.

        Moments that were loaded since stay as they are, until the next one.

        Args:
            late: the average.
            then: this learner's step counts when it began.
            steps: see `end_block`.
            tau: see `end_block`.
            k: see `end_block`.
            updates: that its optimizer has made since.
        """
        if self.loaded:
            return
        flats = self.flats()
        if self.averaged:
            averages = dict(zip(flats, late.averages[2:], strict=True))
        else:
            averages = {name: torch.empty_like(flat) for name, flat in flats.items()}
        started = self._carry(averages, steps, tau, k)
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

    def _carry(
        self, flats: dict[str, Tensor], steps: list[float], tau: float, k: float
    ) -> list[float]:
        """Carry averaged moments along, in place; return the steps they amount to."""
        if self._fate == "reset":
            for flat in flats.values():
                flat.zero_()
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
        """Carry moments over `ahead` times as many steps as each was updated in.

        A parameter that was not reached in every step of a block has its own tau.
        """
        for name, flat in flats.items():
            if name not in self._init:  # the optimizer's first block starts from zeros
                self._init[name] = torch.zeros_like(flat)
            decays = self._moments.decays[name]
            for part, group, tau in self._moments.runs(taus):
                decay = decays[group]
                k = ahead * tau
                gain = extrapolation_gain(decay, tau, k)
                floor = decay ** (tau + k) if name == SQUARES else None
                _carry_on(flat[part], self._init[name][part], gain, floor)

    def state_dict(self) -> dict[str, Any]:
        """Return what must be remembered inside a block."""
        init = {name: tensor.clone() for name, tensor in self._init.items()}
        return {
            "fate": self._fate,
            "steps": list(self._steps),
            "init": init,
            "loaded": self.loaded,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned.

        Raises:
            InputError: it was saved with another fate or optimizer.
        """
        unknown = set(state["init"]) - set(self._moments.decays)
        if state.get("fate") != self._fate or unknown:
            raise InputError(
                "the state was saved with other `moments` or another optimizer; resume "
                "with the same, or remove the experiment's distopt/ folder to reset it"
            )
        self.loaded = False
        self._steps = list(state["steps"])
        self.loaded = state.get("loaded", False)  # not so by what resumes the optimizer
        init = state["init"].items()
        self._init = {name: t.to(self._params, copy=True) for name, t in init}


def _carry_on(moment: Tensor, start: Tensor, gain: float, floor: float | None) -> None:
    """Carry a moment on from where it was at the block's start, which becomes it.

    E[g*g] >= 0 bounds the second moment from below, by `floor` times the start; exact
    arithmetic respects the bound, rounding (and gradients that vanish) do not.
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
    """Put `new` in place of what is left of `old`."""
    for moment, n, o in cache_blocks(live, new, old):
        moment.sub_(o, alpha=share).add_(n, alpha=share)
        if positive:
            moment.clamp_(min=0)  # against rounding
