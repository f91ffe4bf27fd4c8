"""What `distopt_conf` can say: options of the algorithm, and those of the session."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from espnet_distopt.algorithms import check
from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class SessionConfig:
    """The options of a session itself, which it has with any algorithm.

    Attributes:
        heartbeat_seconds: seconds of silence after which a learner counts as lost, at
            least 1. It is for the process group; another driver has its own.
        repeat_begun: whether another learner trains on the item of a `WorkQueue` that a
            learner was training on when it died. If so, the item may be trained on
            twice; if not, it may be trained on not at all.

    Raises:
        InputError: a value is impossible.
    """

    heartbeat_seconds: float = 30
    repeat_begun: bool = False

    def __post_init__(self) -> None:
        seconds = self.heartbeat_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 1 <= seconds < math.inf:
            raise InputError(
                f"heartbeat_seconds must be at least 1, a number, not {seconds!r}"
            )
        if not isinstance(self.repeat_begun, bool):
            raise InputError(
                f"repeat_begun must be true or false, not {self.repeat_begun!r}"
            )

    @classmethod
    def split(cls, conf: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return the options of the session in `conf`, and those of the algorithm.

        Raises:
            InputError: an option of the session is impossible.
        """
        known = {field.name for field in fields(cls)}
        own = {name: value for name, value in conf.items() if name in known}
        rest = {name: value for name, value in conf.items() if name not in known}
        return cls(**own), rest


def check_options(algorithm: str, conf: Mapping[str, Any], size: int) -> None:
    """Raise InputError if `size` learners cannot have sessions with options `conf`.

    Args:
        algorithm: the name of the algorithm.
        conf: its options, and those of the session.
        size: number of learners, N.
    """
    check(algorithm, algorithm_options(conf), size)


def algorithm_options(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the algorithm; check those of the session, and drop them.

    Args:
        conf: as for `check_options`.

    Raises:
        InputError: an option of the session is impossible.
    """
    return SessionConfig.split(conf)[1]
