"""The module holds the outcome of a trial: its history and the figures of its table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class SimulatedMethod:
    """An algorithm with its options, under a name.

    Attributes:
        name: the name that tables and plots show.
        algorithm: the name of the algorithm.
        options: option -> value; options that are missing have their defaults.
    """

    name: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Point(NamedTuple):
    """One evaluation of the consensus model.

    Attributes:
        samples: the number of samples that all learners have trained on so far.
        seconds: the virtual time of the evaluation, in seconds.
        loss: the held-out loss.
        consensus_distance: the distance of the learners from their consensus, relative
            to its norm.
    """

    samples: int
    seconds: float
    loss: float
    consensus_distance: float


@dataclass(kw_only=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        method: the method of the trial.
        learners: the number of learners.
        batch_size: the number of samples of one step of all learners together.
        parameters: the number of the model's parameters.
        alone: the virtual seconds in which a single learner that is not slowed would
            train on as many samples, in steps of `batch_size`.
        stepped: the virtual second at which a learner has made its last step, averaged
            over the learners; what comes after the steps of an epoch is not in it.
        history: one point at the start and one at the end of each epoch.
        bytes_sent: the bytes that a learner has sent, averaged over the learners, those
            that have died included.
        exchanges: the number of exchanges of all learners together.
        staleness_max: the staleness of the stalest correction, in steps of the learner
            that applied it; None if there was no correction.
        lost: the reason why the trial was cut short, or None.
        dead: the learners without which the others have gone on.
    """

    method: SimulatedMethod
    learners: int
    batch_size: int
    parameters: int
    alone: float = 0.0
    stepped: float = 0.0
    history: list[Point] = field(default_factory=list)
    bytes_sent: float = 0.0
    exchanges: float = 0.0
    staleness_max: float | None = None
    lost: str | None = None
    dead: list[int] = field(default_factory=list)
    _staleness_sum: float = 0.0

    def add(self, figures: Sequence[Mapping[str, float]], factor: float) -> None:
        """Add the figures of an epoch.

        Args:
            figures: `VirtualLearner.metrics` of each learner.
            factor: the factor by which the bytes are multiplied, because messages cost
                as if the model were larger or smaller.
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
        """The point at the end of the last epoch that was completed."""
        return self.history[-1]

    @property
    def staleness(self) -> float | None:
        """The mean staleness of corrections, in steps of the learner that applied them.

        It is None if there was no correction.
        """
        return self._staleness_sum / self.exchanges if self.exchanges else None

    @property
    def speedup(self) -> float | None:
        """The speed-up against a single learner; None if the trial was cut short."""
        return None if self.lost else self.alone / self.last.seconds

    @property
    def throughput(self) -> float | None:
        """The samples per virtual second of all learners together.

        It is None if the trial was cut short.
        """
        return None if self.lost else self.last.samples / self.last.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all figures for JSON, with None in place of infinity and NaN."""
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
            "dead": self.dead,
            "history": [{k: _finite(v) for k, v in point.items()} for point in points],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
