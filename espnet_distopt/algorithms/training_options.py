"""What `distopt_conf` can say: options of the algorithm, and those of the session."""

import math
from collections.abc import Mapping
from typing import Any

from espnet_distopt.algorithms import check
from espnet_distopt.errors import InputError


def check_options(algorithm: str, conf: Mapping[str, Any], size: int) -> None:
    """Raise InputError if `size` learners cannot have sessions with options `conf`.

    Args:
        algorithm: the name of the algorithm.
        conf: its options, and those of the session: `heartbeat_seconds` and
            `repeat_begun`.
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
    own = dict(conf)
    check_session_options(
        own.pop("heartbeat_seconds", 30), own.pop("repeat_begun", False)
    )
    return own


def check_session_options(heartbeat_seconds: object, repeat_begun: object) -> None:
    """Raise InputError for impossible options of a session.

    Args:
        heartbeat_seconds: see `espnet_distopt.Session`.
        repeat_begun: see there.
    """
    number = isinstance(heartbeat_seconds, (int, float))
    number = number and not isinstance(heartbeat_seconds, bool)
    if not number or not 1 <= float(str(heartbeat_seconds)) < math.inf:
        raise InputError(
            f"heartbeat_seconds must be at least 1, a number, not {heartbeat_seconds!r}"
        )
    if not isinstance(repeat_begun, bool):
        raise InputError(f"repeat_begun must be true or false, not {repeat_begun!r}")
