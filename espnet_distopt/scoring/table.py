"""Writes tables of counts as plain text, with sclite's columns."""

from collections.abc import Mapping

from espnet_distopt.scoring.confidence import Interval
from espnet_distopt.scoring.counts import Counts

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

    Args:
        counts: The counts of each line, by its name.
        intervals: The 95 % intervals of `Err` in percent, for the names that have one.
        unit: What is counted: words or characters.
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
