"""Suspects are learners whose connection has failed: has one died, or was a link cut.

The machine of a process that is gone refuses a connection to its port at once. If it
does not answer, or the process still listens, the heartbeat decides: a learner that
counts on lives.
"""

import time
from dataclasses import dataclass

CONFIRM = 2.0
"""Seconds within which a suspected learner must have counted on twice."""

PROBE = 0.1
"""Seconds between two looks at a suspected learner."""

BEATS = 2
"""Beats that clear a learner of suspicion."""


@dataclass
class Suspect:
    """A learner that may have died.

    Attributes:
        why: what has happened, in words.
        since: when it was first suspected.
        beats: number of its beats since then.
        count: its last count of heartbeats; None before the first look.
    """

    why: str
    since: float
    beats: int = 0
    count: bytes | None = None

    def cleared(self, count: bytes) -> bool:
        """Return whether the learner lives, given its present count."""
        if self.count is not None and count != self.count:
            self.beats += 1
        self.count = count
        return self.beats >= BEATS

    def overdue(self) -> bool:
        """Return whether the learner has not counted on for too long."""
        return time.monotonic() - self.since > CONFIRM
