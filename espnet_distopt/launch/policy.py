"""What happens when a learner dies or is told to stop."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What happens when a learner dies or is told to stop.

    Attributes:
        restarts: how often each learner is started again, at most.
        others_go_on: whether the others go on; None: if they have told the launcher
            that they do (`distributed.launcher.announce_survival`).
        join_seconds: the seconds after which a replacement is killed that has not
            joined the others.
        stop_seconds: the seconds after which a learner is killed that SIGTERM or Ctrl-C
            has told to stop; infinite if something else has a limit.
    """

    restarts: int = 0
    others_go_on: bool | None = None
    join_seconds: float = math.inf
    stop_seconds: float = math.inf
