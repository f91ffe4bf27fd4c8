"""The optimizer's moments as flat buffers, in the layout of the learner's parameters.

`torch.optim` keeps state per parameter and creates it lazily, at the first step in
which the parameter has a gradient. Here each moment becomes one flat tensor, and the
per-parameter tensors become views into it, so that averaging is one collective.
"""

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

LONG_RUN = 2.0**21
"""Steps; float32 counts them in quarters up to twice as many."""


def moment_decays(optimizer: Optimizer) -> dict[str, list[float]]:
    """Return, for each moment of Adam, AdamW or SGD, its decay rate in each group.

    Raises:
        InputError: another optimizer, or AMSGrad, whose maximum is no moving average.
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
    """Flat buffers of the moments of `learner.optimizer`.

    Attributes:
        flat: moment name -> (P,) tensor; those of `decays`, current after `adopt`.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        moment_decays(learner.optimizer)  # refuses those that are not known
        self._counts_steps = isinstance(learner.optimizer, (Adam, AdamW))
        self.flat: dict[str, Tensor] = {}

    @property
    def decays(self) -> dict[str, list[float]]:
        """Moment name -> its decay rate in each group now: schedules may change it."""
        decays = moment_decays(self._learner.optimizer)
        groups = len(self._learner.optimizer.param_groups)
        return {**{name: [0.0] * groups for name in self.flat}, **decays}

    def adopt(self) -> None:
        """Make the optimizer's state tensors views into `flat`, keeping their values.

        Parameters without state get zeros, as if they had just been created. Costs
        nothing but a walk over the parameters once the views are in place.
        """
        for name in self.decays:
            if name not in self.flat:
                self.flat[name] = torch.zeros_like(self._learner.params)
            self._adopt(name, self.flat[name])
        if self._counts_steps:
            self._adopt_steps()

    def _adopt(self, name: str, flat: Tensor) -> None:
        """Move one moment; what it was in is free before the next one moves."""
        learner = self._learner
        for parameter, slot in zip(learner.parameters, learner.slots, strict=True):
            state = learner.optimizer.state[parameter]
            view, current = slot.of(flat), state.get(name)
            if current is None:
                view.zero_()
            elif current.is_sparse:  # as SGD makes it of a sparse gradient
                view.copy_(current.to_dense())
            elif current.data_ptr() != view.data_ptr():
                view.copy_(current)
            state[name] = view

    def _adopt_steps(self) -> None:
        learner = self._learner
        for parameter, slot in zip(learner.parameters, learner.slots, strict=True):
            state = learner.optimizer.state[parameter]
            if "step" not in state:
                group = learner.optimizer.param_groups[slot.group]
                on_device = group["fused"] or group["capturable"]
                device = parameter.device if on_device else torch.device("cpu")
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)

    def steps(self) -> list[float]:
        """Return each parameter's step count; empty for an optimizer without one."""
        if not self._counts_steps:
            return []
        state = self._learner.optimizer.state
        # not state[p], which would make an empty state
        return [
            float(state.get(p, {}).get("step", 0.0)) for p in self._learner.parameters
        ]

    def set_steps(self, steps: list[float]) -> None:
        """Write step counts; Adam's bias correction accepts fractional ones.

        Counts are float32: beyond `LONG_RUN`, where bias correction has long done its
        part, they are held there, so that the optimizer can still count.
        """
        if not self._counts_steps:
            return
        for parameter, count in zip(self._learner.parameters, steps, strict=True):
            self._learner.optimizer.state[parameter]["step"].fill_(min(count, LONG_RUN))

    def runs(self, values: list[float]) -> list[tuple[slice, int, float]]:
        """Merge neighbours of one group that share a value: (slice, group, value).

        With the same value everywhere, as nearly always, that is one slice a group.
        """
        merged: list[tuple[slice, int, float]] = []
        for slot, value in zip(self._learner.slots, values, strict=True):
            if merged and merged[-1][1:] == (slot.group, value):
                merged[-1] = (slice(merged[-1][0].start, slot.stop), slot.group, value)
            else:
                merged.append((slice(slot.start, slot.stop), slot.group, value))
        return merged
