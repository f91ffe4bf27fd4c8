"""The module describes the learners of a virtual cluster: how long computing takes.

All times are seconds of virtual time. A random duration depends only on a seed and on
what it belongs to, the number of a learner's step. It does not depend on the order in
which durations are asked for. So a learner that is delayed does not change the
durations of the others.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError


def log_normal(spread: float, key: str) -> float:
    """Return a log-normal factor with median 1, which depends on `key` only."""
    if spread == 0:
        return 1.0
    return random.Random(key).lognormvariate(0.0, spread)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How long a learner computes for one step.

    Attributes:
        seconds: the seconds of a step; their median if `spread` is above 0.
        spread: sigma of the log-normal factor on a step's seconds; with 0 all steps
            take equally long.
        trace: the measured seconds of real steps. If there are any, each step takes the
            seconds of one of them, drawn at random; `seconds` and `spread` are ignored.
        slowdown: learner -> the factor by which its steps take longer; a learner that
            is missing is not slowed.
        seed: the seed of all random durations.

    Raises:
        InputError: a step takes no time or for ever, or the spread is below 0.
    """

    seconds: float = 0.3
    spread: float = 0.0
    trace: Sequence[float] = ()
    slowdown: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(f"a step must take seconds > 0, not {self.seconds}")
        if not 0 <= self.spread < math.inf:
            raise InputError(f"the spread of steps must be >= 0, not {self.spread}")
        for number, seconds in enumerate(self.trace):
            if not 0 < seconds < math.inf:
                raise InputError(
                    f"step {number} of the trace must take seconds > 0, not {seconds}"
                )
        for rank, factor in self.slowdown.items():
            if not 0 < factor < math.inf:
                raise InputError(f"slowdown of learner {rank} must be > 0: {factor}")

    def of(self, rank: int, step: int) -> float:
        """Return the seconds that learner `rank` computes for its step `step`."""
        key = f"{self.seed} step {rank} {step}"
        if self.trace:
            seconds = random.Random(key).choice(self.trace)
        else:
            seconds = self.seconds * log_normal(self.spread, key)
        return seconds * self.slowdown.get(rank, 1.0)


def read_trace(path: Path) -> list[float]:
    """Return the seconds of steps that a file has, one a line, for `Compute.trace`.

    Raises:
        InputError: it cannot be read, is empty, or a line is not a number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    seconds = []
    for number, line in enumerate(lines, start=1):
        try:
            seconds.append(float(line))
        except ValueError:
            raise InputError(f"{path}:{number}: expected seconds: {line!r}") from None
    if not seconds:
        raise InputError(f"{path}: expected seconds of steps, one a line; it is empty")
    return seconds
