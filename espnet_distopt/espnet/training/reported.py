"""The figures that ESPnet's reporter has gathered in an epoch, ready to be saved."""

from typing import Any

from espnet2.train.reporter import (
    Average,
    SubReporter,
    WeightedAverage,
    to_reported_value,
)


def reported(reporter: SubReporter) -> dict[str, Any]:
    """Return the figures of the steps so far, as numbers and lists."""
    return {
        "count": reporter.count,
        "total_count": reporter.total_count,
        "stats": {
            key: [_plain(value) for value in values]
            for key, values in reporter.stats.items()
        },
    }


def report_again(reporter: SubReporter, state: dict[str, Any]) -> None:
    """Give the reporter of a resumed epoch what `reported` returned."""
    reporter.count = state["count"]
    reporter.total_count = state["total_count"]
    for key, values in state["stats"].items():
        reporter.stats[key] = [to_reported_value(*value) for value in values]


def _plain(value: Average | WeightedAverage) -> list[float]:
    """Return the arguments of `to_reported_value` that make `value`."""
    weight = [float(value.weight)] if isinstance(value, WeightedAverage) else []
    return [float(value.value), *weight]
