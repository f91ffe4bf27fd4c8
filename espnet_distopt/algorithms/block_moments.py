"""The optimizer's moments at the end of a block (BMUF-Adam; Chen, Ding and Huo 2020).

The start point of the next block lies k equivalent minibatches ahead of the mean of the
learners, but averaged moments do not. Under the paper's assumption that E[g] and E[g*g]
are constant inside a block of tau steps, a moment m with decay b is carried along by

    m_init = mbar + kappa (mbar - m_0),    kappa = b^tau (1 - b^k) / (1 - b^tau)

where m_0 was the moment at the start of the block; and the optimizer's step count, by
which Adam corrects the bias of its moments, advances by k. Momentum of SGD is the same
kind of recursion and is carried along in the same way.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from espnet_distopt.effects import AllReduceMean, Program
from espnet_distopt.errors import InputError
from espnet_distopt.learner import Learner
from espnet_distopt.moments import Moments

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

    Args:
        fate: what becomes of the moments at the end of a block.
        learner: whose moments.

    Raises:
        InputError: an optimizer whose moments are not known.
    """

    def __init__(self, fate: Fate, learner: Learner) -> None:
        self._fate = fate
        self._tensors = len(learner.slots)
        self._moments = Moments(learner)
        self._steps = self._moments.steps()
        self._init: dict[str, Tensor] = {}
        if fate == "extrapolate":
            if learner.optimizer.state:
                self._moments.adopt()
            self._remember()

    def steps(self) -> list[float]:
        """Return each parameter's step count, for the learners to average."""
        return self._moments.steps()

    def carry(self, steps: list[float], tau: float, k: float) -> Program:
        """End a block: all learners' moments become the same.

        Args:
            steps: mean step count of each parameter.
            tau: mean number of updates in the block.
            k: equivalent minibatches between the mean and the next start point.
        """
        moments = self._moments
        moments.adopt()
        if self._fate == "reset":
            for flat in moments.flat.values():
                flat.zero_()
            moments.set_steps([0.0] * len(steps))
            return
        for flat in moments.flat.values():
            yield AllReduceMean(flat)
        if self._fate == "extrapolate":
            before = self._steps or [0.0] * len(steps)
            taus = [now - then for now, then in zip(steps, before, strict=True)]
            ahead = k / tau
            self._extrapolate(taus or [tau] * self._tensors, ahead)
            steps = [s + ahead * t for s, t in zip(steps, taus, strict=True)]
            self._remember()
        moments.set_steps(steps)
        self._steps = moments.steps()

    def _extrapolate(self, taus: list[float], ahead: float) -> None:
        """Carry moments over `ahead` times as many steps as each was updated in.

        A parameter that was not reached in every step of a block has its own tau.
        """
        for name, flat in self._moments.flat.items():
            for part, group, tau in self._moments.runs(taus):
                decay = self._moments.decays[name][group]
                k = ahead * tau
                gain = extrapolation_gain(decay, tau, k)
                if gain == 0:
                    continue
                start, current = self._init[name][part], flat[part]
                # E[g*g] >= 0 bounds the second moment from below; exact arithmetic
                # respects the bound, rounding (and gradients that vanish) do not.
                floor = start * decay ** (tau + k) if name == "exp_avg_sq" else None
                current.mul_(1 + gain).sub_(start, alpha=gain)
                if floor is not None:
                    torch.maximum(current, floor, out=current)

    def _remember(self) -> None:
        for name, flat in self._moments.flat.items():
            if name not in self._init:
                self._init[name] = torch.empty_like(flat)
            self._init[name].copy_(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return what must be remembered inside a block."""
        init = {name: tensor.clone() for name, tensor in self._init.items()}
        return {"fate": self._fate, "steps": list(self._steps), "init": init}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned.

        Raises:
            InputError: it was saved with another fate or optimizer.
        """
        if state.get("fate") != self._fate or set(state["init"]) != set(self._init):
            raise InputError(
                "the state was saved with other `moments` or another optimizer; resume "
                "with the same, or remove the experiment's distopt/ folder to reset it"
            )
        self._steps = list(state["steps"])
        for name, tensor in state["init"].items():
            self._init[name].copy_(tensor)
