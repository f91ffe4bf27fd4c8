"""The optimizer's moments as flat buffers, for methods that average them.

`torch.optim` keeps its state per parameter, and creates it at the first step in which
the parameter has a gradient. Here each moment becomes one flat tensor, and the tensors
of the parameters become views of it. So one collective averages a moment.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from espnet_distopt.algorithms.block.part import Part
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import (
    NEVER,
    NOISE,
    SHARED,
    SQUARES,
    after_average,
)

T = TypeVar("T")

LONG_RUN = 2.0**21
"""The largest step count that is written to the optimizer.

A step count is float32, and the mean of several learners' counts has a fraction. Up to
twice this number float32 still resolves quarters of a step.
"""


def countable(steps: Sequence[float]) -> list[float]:
    """Return step counts as an optimizer can hold them and still count on.

    They are numbers of float32, and at most `LONG_RUN`. At that step Adam's correction
    of the bias no longer changes anything.
    """
    numbers = torch.tensor(steps, dtype=torch.float64).clamp(max=LONG_RUN)
    return numbers.to(torch.float32).tolist()


def moment_decays(optimizer: Optimizer) -> dict[str, list[float]]:
    """Return the decay rates of an optimizer's moments: name -> rate in each group.

    Raises:
        InputError: it is another optimizer, or AMSGrad, whose maximum is no moving
            average.
    """
    groups = optimizer.param_groups
    if isinstance(optimizer, (Adam, AdamW)):
        if any(group["amsgrad"] for group in groups):
            raise InputError("AMSGrad's maximum cannot be averaged; use amsgrad: false")
        return {
            "exp_avg": [group["betas"][0] for group in groups],
            "exp_avg_sq": [group["betas"][1] for group in groups],
        }
    if isinstance(optimizer, SGD):
        if not any(group["momentum"] for group in groups):
            return {}
        return {"momentum_buffer": [group["momentum"] for group in groups]}
    raise InputError(
        f"the moments of {type(optimizer).__name__} are not known here (Adam, AdamW "
        "and SGD are); use moments: local"
    )


class Moments:
    """Flat buffers of the optimizer's moments of a part of the parameters.

    Attributes:
        flat: the moments, name -> tensor (P,). It has those of `decays`, and is up to
            date after `adopt`.
        counted: the number of parameters if the optimizer counts their steps, or 0.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        moment_decays(part.optimizer)  # It refuses an optimizer that is not known.
        self._counts_steps = isinstance(part.optimizer, (Adam, AdamW))
        self.counted = len(part.slots) if self._counts_steps else 0
        adam = "exp_avg", SQUARES
        self._names = adam if self._counts_steps else ("momentum_buffer",)
        self._groups = len(part.optimizer.param_groups)
        self.flat: dict[str, Tensor] = {}

    @property
    def decays(self) -> dict[str, list[float]]:
        """The present decay rates, moment name -> rate in each group.

        They are read anew each time, because a schedule may change them.
        """
        decays = moment_decays(self._part.optimizer)
        groups = len(self._part.optimizer.param_groups)
        return {**{name: [0.0] * groups for name in self.flat}, **decays}

    def numbers(self) -> list[float]:
        """Return the present decay of each moment in each group, one after the other.

        All learners have equally many of them, even if a schedule is ahead on one.
        Groups that were added since hold frozen parameters alone, and are left out.
        """
        decays, absent = self.decays, [0.0] * self._groups
        return [
            float(decay)
            for name in self._names
            for decay in decays.get(name, absent)[: self._groups]
        ]

    def named(self, numbers: Sequence[float]) -> dict[str, list[float]]:
        """Return decays as `decays` has them."""
        firsts = range(0, len(numbers), self._groups)
        parts = [list(numbers[first : first + self._groups]) for first in firsts]
        return dict(zip(self._names, parts, strict=True))

    def adopt(self) -> None:
        """Make the optimizer's state tensors views of `flat`, keeping their values.

        Parameters without state get zeros, as if their state had just been created.
        Once the views are in place, this only looks at each parameter's state.
        """
        for name in self.decays:
            if name not in self.flat:
                self.flat[name] = torch.zeros_like(self._part.params)
            self._adopt(name, self.flat[name])
        if self._counts_steps:
            self._adopt_steps()

    def _adopt(self, name: str, flat: Tensor) -> None:
        """Move one moment to `flat`, and free its old memory before the next one."""
        part = self._part
        for parameter, slot in zip(part.parameters, part.slots, strict=True):
            state = part.optimizer.state[parameter]
            view, current = slot.of(flat), state.get(name)
            if current is None:
                view.zero_()
            elif current.is_sparse:  # SGD makes a sparse buffer of a sparse gradient.
                view.copy_(current.to_dense())
            elif current.data_ptr() != view.data_ptr():
                view.copy_(current)
            state[name] = view

    def _adopt_steps(self) -> None:
        part = self._part
        for parameter, slot in zip(part.parameters, part.slots, strict=True):
            state = part.optimizer.state[parameter]
            if "step" not in state:
                group = part.optimizer.param_groups[slot.group]
                on_device = group["fused"] or group["capturable"]
                device = parameter.device if on_device else torch.device("cpu")
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)

    def forget_average(self) -> None:
        """Forget the last average of first moments, because they begin anew."""
        for parameter in self._part.parameters:
            self._part.optimizer.state.get(parameter, {}).pop(SHARED, None)

    def share_noise(
        self, before: Sequence[float], after: Sequence[float], workers: int
    ) -> None:
        """Note that first moments are means, for the correction of the second moment.

        Args:
            before: the step count of each parameter at the average.
            after: the step count that it got by the average.
            workers: the number of workers that have averaged.
        """
        part, decays = self._part, self.decays["exp_avg"]
        counts = zip(part.parameters, part.slots, before, after, strict=True)
        for parameter, slot, then, now in counts:
            state = part.optimizer.state[parameter]
            last = state.get(SHARED, NEVER)
            kept = after_average(then, decays[slot.group], last, workers)
            state[SHARED] = (now, kept)

    def steps(self) -> list[float]:
        """Return each parameter's step count; empty for an optimizer without one."""
        if not self._counts_steps:
            return []
        state = self._part.optimizer.state
        # state[p] would create an empty state.
        return [float(state.get(p, {}).get("step", 0.0)) for p in self._part.parameters]

    def set_steps(self, steps: list[float]) -> None:
        """Write step counts; Adam's bias correction accepts fractional ones.

        The correction of the second moment divides the noise's estimate s by the weight
        1 - b2^(t-1) of t updates. So s gets the weight that belongs to the new count.
        """
        if not self._counts_steps:
            return
        part, squares = self._part, self.decays[SQUARES]
        counts = zip(part.parameters, part.slots, steps, strict=True)
        for parameter, slot, count in counts:
            state, b2 = part.optimizer.state[parameter], squares[slot.group]
            # A count on a GPU is waited for, so it is read only where it is needed.
            before = float(state["step"]) if NOISE in state else count
            if 1 < before != count and b2 < 1:
                weight = 1 - b2 ** max(0.0, count - 1)
                state[NOISE].mul_(weight / (1 - b2 ** (before - 1)))
            state["step"].fill_(count)

    def runs(self, values: Sequence[T]) -> list[tuple[slice, int, T]]:
        """Merge neighbouring parameters of one group that have the same value.

        Returns (slice, group, value) for each run of them. Usually all parameters have
        one value, and each group is one slice.
        """
        merged: list[tuple[slice, int, T]] = []
        for slot, value in zip(self._part.slots, values, strict=True):
            if merged and merged[-1][1:] == (slot.group, value):
                merged[-1] = (slice(merged[-1][0].start, slot.stop), slot.group, value)
            else:
                merged.append((slice(slot.start, slot.stop), slot.group, value))
        return merged
