"""Tables of counts as plain text, with sclite's columns."""

from collections.abc import Mapping

from espnet_distopt.scoring.confidence import Interval
from espnet_distopt.scoring.counts import Counts

COLUMNS = ("Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")


def counts_table(
    counts: Mapping[str, Counts], intervals: Mapping[str, Interval] | None = None
) -> str:
    """Return a line for each entry: its counts, then percentages of its words.

    Args:
        counts: By name of the line.
        intervals: 95 % intervals of `Err` (percent), for the names that have one.
    """
    intervals = intervals or {}
    width = max(map(len, counts))
    head = f"{'':{width}} {COLUMNS[0]:>6} {COLUMNS[1]:>7}"
    head += "".join(f"{column:>7}" for column in COLUMNS[2:])
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
