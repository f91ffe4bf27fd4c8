"""Durations in words."""


def duration(seconds: float) -> str:
    """Return e.g. `4 s`, `3 min 05 s` or `2 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
