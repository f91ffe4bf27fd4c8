"""Durations in words, and the unit of a plot's time axis, for people."""

from typing import NamedTuple


def duration(seconds: float) -> str:
    """Return a number of seconds as people write it.

    Example:
        >>> [duration(seconds) for seconds in (4.2, 185, 7800)]
        ['4 s', '3 min 05 s', '2 h 10 min']
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class TimeUnit(NamedTuple):
    """A unit of time for the axis of a plot: its name in the plural, and its length."""

    name: str
    seconds: int


def time_unit(seconds: float) -> TimeUnit:
    """Return the largest unit of which a duration has at least two.

    Example:
        >>> [time_unit(seconds).name for seconds in (66, 600, 90_000)]
        ['seconds', 'minutes', 'hours']
    """
    units = (TimeUnit("hours", 3600), TimeUnit("minutes", 60))
    found = (unit for unit in units if seconds >= 2 * unit.seconds)
    return next(found, TimeUnit("seconds", 1))
