"""What ESPnet's reporter has gathered within an epoch, as plain values."""

from typing import Any

from espnet2.train.reporter import (
    Average,
    SubReporter,
    WeightedAverage,
    to_reported_value,
)


def reported(reporter: SubReporter) -> dict[str, Any]:
    """Return the figures of the steps so far: numbers and lists only."""
    return {
        "count": reporter.count,
        "total_count": reporter.total_count,
        "stats": {
            key: [_plain(value) for value in values]
            for key, values in reporter.stats.items()
        },
    }


def report_again(reporter: SubReporter, state: dict[str, Any]) -> None:
    """Write back what `reported` returned, into the reporter of a resumed epoch."""
    reporter.count = state["count"]
    reporter.total_count = state["total_count"]
    for key, values in state["stats"].items():
        reporter.stats[key] = [to_reported_value(*value) for value in values]


def _plain(value: Average | WeightedAverage) -> list[float]:
    """Return the arguments of `to_reported_value` that make `value`."""
    weight = [float(value.weight)] if isinstance(value, WeightedAverage) else []
    return [float(value.value), *weight]
