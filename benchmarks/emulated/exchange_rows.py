"""The module makes the rows of the table of `benchmarks/adasum_exchange.py`."""

from statistics import median
from typing import Any

from report import spread


def exchange_rows(size: int, found: dict[str, Any], reference: str) -> list[str]:
    """Return the rows of a number of learners.

    Args:
        size: the number of learners.
        found: seconds of each repeat: by the clock and of the processor for each
            method, and of the phases of an exchange.
        reference: the method that the others are divided by, repeat by repeat.
    """
    clock, processor = found["clock"], found["processor"]
    rows = [
        f"| {size} | {name} | {median(clock[name]) * 1000:.0f} ms "
        f"| {_ratios(clock, name, reference)} | {_ratios(processor, name, reference)} |"
        for name in clock
    ]
    parts = [
        f"{name} {median(seconds) * 1000:.0f} ms"
        for name, seconds in found["phases"].items()
    ]
    return [*rows, f"| {size} | of which | {'; '.join(parts)} | | |"]


def _ratios(seconds: dict[str, list[float]], name: str, reference: str) -> str:
    """Return the ratios of a method's seconds to the reference's."""
    each = [a / b for a, b in zip(seconds[name], seconds[reference], strict=True)]
    return spread(each, ".2f")
