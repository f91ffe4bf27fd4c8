"""Learning rates of the parameter groups, which SlowMo's block update follows.

The update of a block is proportional to the learning rate. So when the rate changes,
the update that is carried over from earlier blocks is rescaled (see `slowmo`).
"""

from torch import Tensor

from espnet_distopt.algorithms.block.part import Part


class LearningRates:
    """Rescales a flat update when the learning rate of a parameter group changes.

    Attributes:
        last: for each group, its rate at the end of the last block where that was not
            0; 0 before any such block.

    Args:
        part: the parameters of the update.
    """

    def __init__(self, part: Part) -> None:
        self._optimizer = part.optimizer
        self._parts = []
        for group in range(len(self._optimizer.param_groups)):
            slots = [slot for slot in part.slots if slot.group == group]
            bounds = (slots[0].start, slots[-1].stop) if slots else (0, 0)
            self._parts.append(slice(*bounds))
        self.last = [0.0] * len(self._parts)

    def current(self) -> list[float]:
        """Return each group's learning rate, for the learners to average."""
        # Groups that were added since the session began hold frozen parameters alone.
        groups = self._optimizer.param_groups[: len(self._parts)]
        return [float(group["lr"]) for group in groups]

    def follow(self, rates: list[float], update: Tensor) -> list[tuple[slice, Tensor]]:
        """Multiply each group's part of `update` (P,) by its rate / its last rate.

        If a group's rate is 0, its part is set aside: it becomes zeros, and its former
        values are returned together with its slice.

        Args:
            rates: the present learning rate of each group.
            update: the flat update (P,), which is changed in place.
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
