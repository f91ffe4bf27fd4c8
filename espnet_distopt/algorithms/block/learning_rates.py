"""Learning rates of the parameter groups, which SlowMo's block update follows.

The update of a block is proportional to the mean of the rates of its steps. So when
that changes, the update that is carried over from earlier blocks is rescaled (see
`slowmo`).
"""

from typing import Any

from torch import Tensor

from espnet_distopt.algorithms.block.part import Part


class LearningRates:
    """Rescales a flat update when the learning rate of a parameter group changes.

    Attributes:
        last: for each group, its rate in the last block where that was not 0; 0 before
            any such block.

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
        self._begin()
        part.updated.append(self._count)

    def _begin(self) -> None:
        self._counted, self._means = 0, [0.0] * len(self._parts)

    def _present(self) -> list[Any]:
        # Groups that were added since the session began hold frozen parameters alone.
        groups = self._optimizer.param_groups[: len(self._parts)]
        return [group["lr"] for group in groups]

    def _count(self) -> None:
        """Count the rates of an update.

        A mean that is computed so is exact while the rate is constant. A rate that is a
        tensor on a GPU is not waited for.
        """
        self._counted += 1
        self._means = [
            mean + (rate - mean) / self._counted
            for mean, rate in zip(self._means, self._present(), strict=True)
        ]

    def of_block(self) -> list[float]:
        """Return each group's rate in the block, for the learners to average.

        It is the mean over the updates since the last call, or the present rate if
        there was none.
        """
        rates = self._means if self._counted else self._present()
        self._begin()
        return [float(rate) for rate in rates]

    def follow(self, rates: list[float], update: Tensor) -> list[tuple[slice, Tensor]]:
        """Multiply each group's part of `update` (P,) by its rate / its last rate.

        If a group's rate is 0, its part is set aside: it becomes zeros, and its former
        values are returned together with its slice.

        Args:
            rates: the learning rate of each group in the block.
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

    def state_dict(self) -> dict[str, Any]:
        """Return the rates of the last block and of this one."""
        means = [float(mean) for mean in self._means]
        return {
            "rates": list(self.last),
            "block_rates": means,
            "counted": self._counted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned, among other entries of `state`.

        Older versions have saved the rate at the end of the last block alone; what the
        block has had until then is not counted.
        """
        self._begin()
        self.last = list(state["rates"])
        self._means = list(state.get("block_rates", self._means))
        self._counted = state.get("counted", 0)
