"""Paired differences between two methods, seed by seed, with their 95 % intervals.

With the same seed two trainings have the same initial model and the same batches, so
the difference of their figures varies less than the figures do. Of n differences d

    mean(d) +- t sqrt(var(d) / n)       t   the 0.975 quantile of Student's t, n - 1

covers the true mean in 95 % of experiments, if the differences are normal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences.

    Attributes:
        mean: the mean.
        half_width: half of the width of its 95 % interval; None with a single pair,
            which has no interval.
        pairs: the number of pairs.
    """

    mean: float
    half_width: float | None
    pairs: int

    def text(self, form: str) -> str:
        """Return the mean and its interval, for a table.

        Args:
            form: the format of a number, as `.3f`.
        """
        text = format(self.mean, f"+{form}")
        if self.half_width is None:
            return text
        low, high = self.mean - self.half_width, self.mean + self.half_width
        return f"{text} ({low:+{form}} to {high:+{form}})"


def paired(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> Difference | None:
    """Return the mean of `values - reference` over the seeds of both, None without any.

    Args:
        values: seed -> figure of a method.
        reference: seed -> figure of the method that it is compared with.
    """
    seeds = sorted(values.keys() & reference.keys())
    if not seeds:
        return None
    differences = [values[seed] - reference[seed] for seed in seeds]
    if len(seeds) == 1:
        return Difference(differences[0], None, 1)
    # SciPy is only needed for a report, so a training needs none.
    from scipy.stats import t

    quantile = float(t.ppf((1 + LEVEL) / 2, len(seeds) - 1))
    error = stdev(differences) / sqrt(len(seeds))
    return Difference(mean(differences), quantile * error, len(seeds))
