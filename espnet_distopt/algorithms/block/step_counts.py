"""The optimizer's step counts in a block; their equations are in `moments`.

Adam corrects the bias of its moments by the number of updates that each parameter has
had. Where moments are extrapolated, so are these counts.
"""

from collections.abc import Sequence

from espnet_distopt.algorithms.block.flat_moments import countable
from espnet_distopt.algorithms.block.message import Agreed


class StepCounts:
    """The count of each parameter at the start of the block.

    Attributes:
        at_start: these counts; empty for an optimizer that counts no steps.

    Args:
        parameters: the number of parameters.
        resets: whether the counts begin anew at the end of a block.
    """

    def __init__(self, parameters: int, resets: bool) -> None:
        self._parameters, self._resets = parameters, resets
        self.at_start: list[float] = []

    def have_fallen(self, now: Sequence[float]) -> bool:
        """Return whether a count is lower now: its parameter's state was cleared."""
        both = zip(now, self.at_start, strict=False)
        return any(count < before for count, before in both)

    def updates(self, agreed: Agreed) -> list[float]:
        """Return the number of updates of each parameter in the block.

        Args:
            agreed: what the learners know of the block.
        """
        before = self.at_start or [0.0] * len(agreed.steps)
        taus = [now - then for now, then in zip(agreed.steps, before, strict=True)]
        return taus or [agreed.tau] * self._parameters

    def at_next_start(
        self, agreed: Agreed, taus: Sequence[float], ahead: float
    ) -> list[float]:
        """Return the counts at the next start point; empty if there are none.

        Args:
            agreed: what the learners know of the block.
            taus: what `updates` has returned.
            ahead: by how many of their updates the moments are extrapolated.
        """
        if self._resets:
            return [0.0] * len(agreed.steps)
        # Without step counts there are still as many taus as parameters.
        counted = zip(agreed.steps, taus[: len(agreed.steps)], strict=True)
        return countable([steps + ahead * tau for steps, tau in counted])
