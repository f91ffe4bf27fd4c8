"""Tells how sure an error rate is, by a bootstrap over the speakers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from espnet_distopt.scoring.counts import Counts

Interval = tuple[float, float]
"""The lower and the upper end, in percent of the reference words."""

SPEAKERS, WRITERS, LINES = "speakers", "writers or fonts", "lines"
"""What a bootstrap draws."""


@dataclass(frozen=True)
class Draws:
    """What the bootstrap of a result has drawn.

    Attributes:
        kind: SPEAKERS, WRITERS or LINES.
        numbers: How many of them there are in each half that has an interval.
    """

    kind: str
    numbers: Mapping[str, int]


def bootstrap_interval(
    speakers: Iterable[Counts],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval | None:
    """Return the interval that holds the word error rate at a level of confidence.

    The errors of a speaker depend on each other. So the bootstrap draws speakers, with
    replacement, and not words or sentences. The rate of a draw is the sum of its errors
    over the sum of its words. The ends of the interval are quantiles of these rates
    (the percentile method; Bisani and Ney, "Bootstrap estimates for confidence
    intervals in ASR performance evaluation", 2004).

    Args:
        speakers: The counts of each speaker.
        level: The share of such intervals that should hold the true rate.
        resamples: The number of draws.
        seed: The seed of the draws.

    Returns:
        The interval, rounded to hundredths of a percent. It is None if fewer than two
        speakers have reference words, because then nothing is known of the spread.
    """
    counts = np.array([(each.errors, each.words) for each in speakers]).reshape(-1, 2)
    if np.count_nonzero(counts[:, 1]) < 2:
        return None
    n = len(counts)
    rng = np.random.default_rng(seed)
    errors, words = (rng.multinomial(n, np.full(n, 1 / n), size=resamples) @ counts).T
    drawn = words > 0
    rates = 100.0 * errors[drawn] / words[drawn]
    tail = (1 - level) / 2
    low, high = np.quantile(rates, (tail, 1 - tail))
    return round(float(low), 2), round(float(high), 2)
