"""The module compares two methods that were trained with the same seeds.

A seed fixes the model's start and the samples, so the two losses of a seed belong
together, and their difference scatters less than the losses do. With n seeds and
relative differences d of mean m and standard deviation s, the 95 % interval is

    m +- t s / sqrt(n)          t   the 97.5 % quantile of Student's t, n - 1 degrees
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from scipy import stats

Verdict = Literal["holds", "does not hold", "undecided"]

MOST_SEEDS = 200
"""The number of seeds beyond which nobody will want to decide a question."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        mean: the mean; infinite if a training diverged.
        half: half the width of the interval; infinite with one value, NaN if a training
            diverged.
        deviation: the standard deviation of the values.
        count: the number of values.
    """

    mean: float
    half: float
    deviation: float
    count: int

    @property
    def lower(self) -> float:
        """The lower bound."""
        return self.mean - self.half

    @property
    def upper(self) -> float:
        """The upper bound."""
        return self.mean + self.half

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return "diverged"
        if math.isinf(self.half):
            return f"{self.mean:+.1f} % (one seed)"
        return f"{self.mean:+.1f} % ({self.lower:+.1f} to {self.upper:+.1f})"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of some values with its 95 % interval."""
    count = len(values)
    if any(map(math.isinf, values)):
        return Interval(math.inf, math.nan, math.nan, count)
    if count == 1:
        return Interval(values[0], math.inf, math.nan, 1)
    deviation = stdev(values)
    return Interval(mean(values), _half(deviation, count), deviation, count)


def difference(
    losses: Sequence[float | None], reference: Sequence[float | None]
) -> Interval | None:
    """Return by how much losses are above those of a reference, in per cent.

    Args:
        losses: the loss of a method with each seed; None, which counts as infinite,
            where the training diverged.
        reference: those of the reference. If it diverged, there is no difference.
    """
    if None in reference:
        return None
    return interval(
        [
            math.inf if loss is None else 100 * (loss / known - 1)
            for loss, known in zip(losses, reference, strict=True)
            if known is not None
        ]
    )


@dataclass(frozen=True)
class Question:
    """A question that is asked before anything is measured.

    Attributes:
        limit: a relative difference in per cent.
        sense: with `at most` the answer is yes if the true mean is not above the limit;
            with `at least`, if it is not below.
    """

    limit: float
    sense: Literal["at most", "at least"] = "at most"

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:+g} %"

    def answer(self, found: Interval) -> Verdict:
        """Return whether the whole interval is on one side of the limit."""
        if math.isinf(found.mean):
            return "does not hold" if self.sense == "at most" else "holds"
        below, above = found.upper <= self.limit, found.lower > self.limit
        if self.sense == "at least":
            below, above = found.lower >= self.limit, found.upper < self.limit
        return "holds" if below else "does not hold" if above else "undecided"

    def seeds_to_decide(self, found: Interval) -> int | None:
        """Return how many seeds would decide, if mean and scatter stayed the same.

        It is None if that cannot be said, or if `MOST_SEEDS` would not be enough.
        """
        for count in range(max(found.count, 2), MOST_SEEDS + 1):
            if _half(found.deviation, count) < abs(found.mean - self.limit):
                return count
        return None


def _half(deviation: float, count: int) -> float:
    return _quantile(count) * deviation / math.sqrt(count)


@functools.cache
def _quantile(count: int) -> float:
    return float(stats.t.ppf(0.975, count - 1))
