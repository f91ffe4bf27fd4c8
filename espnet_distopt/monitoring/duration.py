"""Durations in words, for people."""


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
