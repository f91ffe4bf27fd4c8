"""The module lists the methods that `links` compares, and what each of them sends."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from emulated.methods import MeasuredMethod
from espnet_distopt.algorithms import ALGORITHMS

LEARNERS = 4
ALL_REDUCE = 2 * (LEARNERS - 1) / LEARNERS
"""How many times its size each learner sends in an all-reduce of a model."""

BLOCKS = ("local_sgd", "bmuf_adam", "PostLocalSGD", "fairscale SlowMo", "hivemind")
"""The methods that synchronize every `period` steps."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method, and what it sends.

    Attributes:
        method: the method.
        period: the number of steps between two synchronizations.
        models: what each learner sends in a period (with gossip: in an exchange), as a
            multiple of the model's size in float32.
        beside: whether the method sends while it computes.
        repeats: the number of measurements.
    """

    method: MeasuredMethod
    period: int = 1
    models: float = 0.0
    beside: bool = False
    repeats: int = 1

    @property
    def gossips(self) -> bool:
        """Whether the method exchanges as often as the link allows."""
        return self.method.name in ("adpsgd", "bare TCP")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the measurement.

    Attributes:
        parameters: the number of the model's parameters.
        seconds: the seconds of a forward and a backward pass together.
        least: the least seconds that a measurement takes.
        repeats: the largest number of measurements of a method.
        names: the names of the methods to measure; None measures all.
    """

    parameters: int
    seconds: float
    least: float
    repeats: int = 3
    names: Sequence[str] | None = None

    def link_seconds(self, models: float, rate: int) -> float:
        """Return the seconds that a link takes to send models.

        Args:
            models: how many models; the number need not be whole.
            rate: the rate of the link, in Mbit/s.
        """
        return models * self.parameters * 32 / (rate * 1e6)

    def cases(self) -> list[Case]:
        """Return the cases to compare; those without communication come first."""
        found = [*_alone(), *_gossip(), *_every_step(), *_in_blocks()]
        return [c for c in found if self.names is None or c.method.name in self.names]


FULL = Size(parameters=35_000_000, seconds=0.3, least=6.0)
QUICK = Size(
    parameters=2_000_000,
    seconds=0.05,
    least=0.5,
    repeats=1,
    names=("none", "bare TCP", "adpsgd", "local_sgd", "DDP"),
)


def _alone() -> list[Case]:
    return [
        Case(method=MeasuredMethod(name="none", adam=adam), repeats=3)
        for adam in (False, True)
    ]


def _gossip() -> list[Case]:
    # An exchange may take longer than 16 steps, the default after which training waits.
    patient = {"max_staleness": 1000}
    options: list[dict[str, Any]] = [{}, patient]
    if _knows("adpsgd", "exchange"):
        options.append({**patient, "exchange": "bfloat16"})
    limit = MeasuredMethod(name="bare TCP")
    return [
        Case(method=limit, models=1.0, beside=True, repeats=3),
        *[
            Case(
                method=MeasuredMethod(name="adpsgd", options=chosen),
                models=0.5 if "exchange" in chosen else 1.0,
                beside=True,
                repeats=3,
            )
            for chosen in options
        ],
    ]


def _every_step() -> list[Case]:
    models = {
        "allreduce": ALL_REDUCE,
        "adasum": ALL_REDUCE,
        "DDP": ALL_REDUCE,
        "decent-dp": 1.0,  # It makes an all-reduce of two learners.
    }
    return [
        Case(
            method=MeasuredMethod(name=name),
            models=sent,
            beside=name in ("allreduce", "DDP", "decent-dp"),
            repeats=3 if name in ("allreduce", "DDP") else 1,
        )
        for name, sent in models.items()
    ]


def _in_blocks() -> list[Case]:
    return [
        Case(
            method=MeasuredMethod(name=name, options=options, adam=name == "bmuf_adam"),
            period=options["period"],
            # BMUF-Adam averages Adam's two moments, too.
            models=ALL_REDUCE
            * (3 if name == "bmuf_adam" else 1)
            / (2 if "exchange" in options else 1),
            beside="delay" in options or name == "hivemind",
            repeats=3 if "delay" in options else 1,
        )
        for name in BLOCKS
        for options in _block_options(name)
    ]


def _block_options(name: str) -> list[dict[str, Any]]:
    if name == "hivemind":  # It needs seconds to find a group, so blocks must be long.
        return [{"period": 32}]
    options = [{"period": 8}]
    if name in ALGORITHMS:
        options.append({"period": 32})
        if _knows(name, "delay"):
            options.append({"period": 32, "delay": 31})
            if name == "bmuf_adam":
                options.append({**options[-1], "exchange": "bfloat16"})
            options.append({"period": 32, "delay": 3, "fragments": 8})
    return options


def _knows(algorithm: str, option: str) -> bool:
    """Return whether the algorithm has the option."""
    return option in {field.name for field in fields(ALGORITHMS[algorithm].config)}
