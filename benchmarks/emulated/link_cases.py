"""What `links` compares, and what each method is known to send."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from emulated.methods import MeasuredMethod
from espnet_distopt.algorithms import ALGORITHMS

LEARNERS = 4
ALL_REDUCE = 2 * (LEARNERS - 1) / LEARNERS
"""Models that each learner sends in an all-reduce of one."""

BLOCKS = ("local_sgd", "bmuf_adam", "PostLocalSGD", "fairscale SlowMo", "hivemind")
"""What synchronises every `period` steps."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method, and what it is known to send.

    Attributes:
        period: steps between two synchronisations.
        models: times the model's float32 size that each learner sends in a period, or,
            of gossip, in an exchange.
        beside: it sends beside the computation.
        repeats: of the measurement.
    """

    method: MeasuredMethod
    period: int = 1
    models: float = 0.0
    beside: bool = False
    repeats: int = 1

    @property
    def gossips(self) -> bool:
        """Whether it exchanges as often as the link allows."""
        return self.method.name == "adpsgd"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the measurement is.

    Attributes:
        parameters: of the model.
        seconds: of forward and backward.
        least: seconds that a measurement takes at least.
        repeats: of a measurement at most.
        names: of the methods; None: all.
    """

    parameters: int
    seconds: float
    least: float
    repeats: int = 3
    names: Sequence[str] | None = None

    def link_seconds(self, models: float, rate: int) -> float:
        """Return how long a link takes for so many models."""
        return models * self.parameters * 32 / (rate * 1e6)

    def cases(self) -> list[Case]:
        """Return what is compared: the loops without communication first."""
        found = [*_alone(), *_gossip(), *_every_step(), *_in_blocks()]
        return [c for c in found if self.names is None or c.method.name in self.names]


FULL = Size(parameters=35_000_000, seconds=0.3, least=6.0)
QUICK = Size(
    parameters=2_000_000,
    seconds=0.05,
    least=0.5,
    repeats=1,
    names=("none", "adpsgd", "local_sgd", "DDP"),
)


def _alone() -> list[Case]:
    return [
        Case(method=MeasuredMethod(name="none", adam=adam), repeats=3)
        for adam in (False, True)
    ]


def _gossip() -> list[Case]:
    # An exchange may take longer than the 16 steps that training waits for by default.
    patient = {"max_staleness": 1000}
    options: list[dict[str, Any]] = [{}, patient]
    if _knows("adpsgd", "exchange"):
        options.append({**patient, "exchange": "bfloat16"})
    return [
        Case(
            method=MeasuredMethod(name="adpsgd", options=chosen),
            models=0.5 if "exchange" in chosen else 1.0,
            beside=True,
            repeats=3 if chosen else 1,
        )
        for chosen in options
    ]


def _every_step() -> list[Case]:
    models = {
        "allreduce": ALL_REDUCE,
        "adasum": ALL_REDUCE,
        "DDP": ALL_REDUCE,
        "decent-dp": 1.0,  # an all-reduce of two learners
    }
    return [
        Case(
            method=MeasuredMethod(name=name),
            models=sent,
            beside=name in ("DDP", "decent-dp"),
        )
        for name, sent in models.items()
    ]


def _in_blocks() -> list[Case]:
    return [
        Case(
            method=MeasuredMethod(name=name, options=options, adam=name == "bmuf_adam"),
            period=options["period"],
            # BMUF-Adam averages Adam's two moments, too.
            models=ALL_REDUCE * (3 if name == "bmuf_adam" else 1),
            beside="delay" in options or name == "hivemind",
            repeats=3 if "delay" in options else 1,
        )
        for name in BLOCKS
        for options in _block_options(name)
    ]


def _block_options(name: str) -> list[dict[str, Any]]:
    if name == "hivemind":  # it needs seconds to find a group
        return [{"period": 32}]
    options = [{"period": 8}]
    if name in ALGORITHMS:
        options.append({"period": 32})
        if _knows(name, "delay"):
            options.append({"period": 32, "delay": 31})
    return options


def _knows(algorithm: str, option: str) -> bool:
    """Return whether the algorithm has that option."""
    return option in {field.name for field in fields(ALGORITHMS[algorithm].config)}
