"""What happens when a learner dies, as the user of the launcher has it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What happens when a learner dies.

    Attributes:
        restarts: how often each learner is started again, at most.
        others_go_on: whether the others go on; None: if they have told the launcher
            that they do (`distributed.launcher.announce_survival`).
        join_seconds: the seconds after which a replacement is killed that has not
            joined the others.
    """

    restarts: int = 0
    others_go_on: bool | None = None
    join_seconds: float = math.inf
