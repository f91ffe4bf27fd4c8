"""What came of a trial: its method, its history, and the figures of its table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class SimulatedMethod:
    """An algorithm with its options, under a name of its own."""

    name: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Point(NamedTuple):
    """The consensus model after so many samples, at so many virtual seconds."""

    samples: int
    seconds: float
    loss: float
    consensus_distance: float


@dataclass(kw_only=True)
class Outcome:
    """What came of a trial.

    Attributes:
        batch_size: samples of a step of all learners together.
        parameters: of the model.
        alone: virtual seconds in which one learner, not slowed, makes all the steps.
        history: the start, then the end of each epoch.
        bytes_sent: per learner, their mean.
        exchanges: of all learners.
        staleness_max: of the corrections, in own steps; None where there are none.
        lost: why the trial ended before its time, or None.
    """

    method: SimulatedMethod
    learners: int
    batch_size: int
    parameters: int
    alone: float
    history: list[Point] = field(default_factory=list)
    bytes_sent: float = 0.0
    exchanges: float = 0.0
    staleness_max: float | None = None
    lost: str | None = None
    _staleness_sum: float = 0.0

    def add(self, figures: Sequence[Mapping[str, float]], factor: float) -> None:
        """Add an epoch's `VirtualLearner.metrics` of each learner.

        Args:
            figures: of each learner.
            factor: so many times more bytes count as sent.
        """
        for of_learner in figures:
            self.bytes_sent += of_learner["bytes"] * factor / self.learners
            exchanges = of_learner.get("exchanges", 0.0)
            self.exchanges += exchanges
            self._staleness_sum += of_learner.get("staleness", 0.0) * exchanges
            if "staleness_max" in of_learner:
                largest = of_learner["staleness_max"]
                self.staleness_max = max(largest, self.staleness_max or 0.0)

    @property
    def last(self) -> Point:
        """The end of the last epoch that came to its end."""
        return self.history[-1]

    @property
    def staleness(self) -> float | None:
        """Mean of the corrections, in own steps; None where there are none."""
        return self._staleness_sum / self.exchanges if self.exchanges else None

    @property
    def speedup(self) -> float | None:
        """How many times faster than one learner; None if the trial was cut short."""
        return None if self.lost else self.alone / self.last.seconds

    @property
    def throughput(self) -> float | None:
        """Samples a virtual second of all learners; None if it was cut short."""
        return None if self.lost else self.last.samples / self.last.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON; what is not finite is None."""
        points = [point._asdict() for point in self.history]
        return {
            "name": self.method.name,
            "algorithm": self.method.algorithm,
            "options": dict(self.method.options),
            "learners": self.learners,
            "batch_size": self.batch_size,
            "parameters": self.parameters,
            "held_out_loss": _finite(self.last.loss),
            "virtual_seconds": self.last.seconds,
            "speedup": self.speedup,
            "samples_per_second": self.throughput,
            "staleness_mean": self.staleness,
            "staleness_max": self.staleness_max,
            "bytes_sent_per_learner": self.bytes_sent,
            "lost": self.lost,
            "history": [{k: _finite(v) for k, v in point.items()} for point in points],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
