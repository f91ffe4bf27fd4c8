"""Differences between two methods, seed by seed, with their 95 % intervals.

With the same seed two trainings have the same initial model and the same batches, so
the difference of their figures varies less than the figures do.
"""

import math
from collections.abc import Mapping

from convergence.paired import Interval, interval


def paired(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> Interval | None:
    """Return the mean of `values - reference` over the seeds of both, None without any.

    Args:
        values: seed -> figure of a method.
        reference: seed -> figure of the method that it is compared with.
    """
    seeds = sorted(values.keys() & reference.keys())
    return interval([values[s] - reference[s] for s in seeds]) if seeds else None


def in_words(difference: Interval, form: str) -> str:
    """Return a mean and its interval, for a table.

    Args:
        difference: the mean; a single pair has no interval.
        form: the format of a number, as `.3f`.
    """
    text = format(difference.mean, f"+{form}")
    if math.isinf(difference.half):
        return text
    return f"{text} ({difference.lower:+{form}} to {difference.upper:+{form}})"
