"""The learning rates that a filtered block update follows (SlowMo, see `slowmo`)."""

from torch import Tensor

from espnet_distopt.core.learner import Learner


class LearningRates:
    """Rescales a flat update when the learning rate of a parameter group changes.

    Attributes:
        last: each group's rate at the end of the last block in which it was not 0;
            0 before any such block.
    """

    def __init__(self, learner: Learner) -> None:
        self._optimizer = learner.optimizer
        self._parts = []
        for group in range(len(self._optimizer.param_groups)):
            slots = [slot for slot in learner.slots if slot.group == group]
            bounds = (slots[0].start, slots[-1].stop) if slots else (0, 0)
            self._parts.append(slice(*bounds))
        self.last = [0.0] * len(self._parts)

    def current(self) -> list[float]:
        """Return each group's learning rate, for the learners to average."""
        groups = self._optimizer.param_groups[: len(self._parts)]  # later: all frozen
        return [float(group["lr"]) for group in groups]

    def follow(self, rates: list[float], update: Tensor) -> list[tuple[slice, Tensor]]:
        """Multiply each group's part of `update` (P,) by its rate / its last rate.

        Where the rate is 0 the part is set aside: it becomes zeros, and what it was is
        returned with its place.
        """
        held = []
        for group, (part, rate) in enumerate(zip(self._parts, rates, strict=True)):
            if rate == 0:
                held.append((part, update[part].clone()))
                update[part] = 0
                continue
            if self.last[group] != 0:
                update[part].mul_(rate / self.last[group])
            self.last[group] = rate
        return held
