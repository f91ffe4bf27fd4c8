"""The counts of a scored set, their rates, how sure these are, and tables of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts of a set of sentences, as sclite's raw summary has them.

    Attributes:
        sentences: Sentences (utterances) scored.
        words: Words in the reference.
        correct: Reference words recognized.
        substitutions: Reference words recognized as another word.
        deletions: Reference words without a counterpart.
        insertions: Hypothesis words without a counterpart.
        sentence_errors: Sentences with at least one error.
    """

    sentences: int
    words: int
    correct: int
    substitutions: int
    deletions: int
    insertions: int
    sentence_errors: int

    @classmethod
    def total(cls, parts: Iterable["Counts"]) -> "Counts":
        """Return the sums of parts that have no sentence in common."""
        parts = tuple(parts)
        names = cls.__dataclass_fields__
        return cls(
            **{name: sum(getattr(part, name) for part in parts) for name in names}
        )

    @property
    def errors(self) -> int:
        """Return the number of substitutions, deletions and insertions together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def error_rate(self) -> float:
        """Return the word error rate in percent of the reference words."""
        return self.percent(self.errors)

    @property
    def sentence_error_rate(self) -> float:
        """Return the sentences with an error in percent of the sentences."""
        return 100.0 * self.sentence_errors / self.sentences

    def percent(self, count: int) -> float:
        """Return a count in percent of the reference words."""
        return 100.0 * count / self.words

    @property
    def rates(self) -> tuple[float, ...]:
        """Return Corr, Sub, Del, Ins, Err and S.Err in percent, in sclite's order."""
        return (
            self.percent(self.correct),
            self.percent(self.substitutions),
            self.percent(self.deletions),
            self.percent(self.insertions),
            self.error_rate,
            self.sentence_error_rate,
        )


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


_RATES = ("Corr", "Sub", "Del", "Ins", "Err", "S.Err")


def columns(unit: str = "words") -> tuple[str, ...]:
    """Return sclite's names of the columns; `Chr` where characters are counted."""
    return ("Snt", "Wrd" if unit == "words" else "Chr", *_RATES)


def counts_table(
    counts: Mapping[str, Counts],
    intervals: Mapping[str, Interval] | None = None,
    unit: str = "words",
) -> str:
    """Return a line for each entry: its counts, then percentages of its words.

    The intervals are the 95 % ones of `Err`, in percent, for the names that have one.
    The unit is words or characters.
    """
    intervals = intervals or {}
    width = max(map(len, counts))
    sentences, words, *rates = columns(unit)
    head = f"{'':{width}} {sentences:>6} {words:>7}"
    head += "".join(f"{column:>7}" for column in rates)
    lines = [head + ("  95 % of Err" if intervals else "")]
    for name, each in counts.items():
        line = f"{name:{width}} {each.sentences:6} {each.words:7}"
        if each.words:
            line += "".join(f"{rate:7.1f}" for rate in each.rates)
        if name in intervals:
            line += f"  {format_interval(intervals[name])}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def format_interval(interval: Interval) -> str:
    """Return an interval (percent) as people write it: `27.9-31.6`."""
    return "{:.1f}-{:.1f}".format(*interval)
