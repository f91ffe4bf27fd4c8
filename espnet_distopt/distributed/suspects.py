"""Suspects are learners whose connection has failed: has one died, or was a link cut.

The machine of a process that is gone refuses a connection to its port at once. If it
does not answer, or the process still listens, the heartbeat decides: a learner that
counts on lives.

Only time counts in which this process has looked. If its own heartbeat is late, because
the store has stalled or the machine swaps, that says nothing of the suspect.
"""

from dataclasses import dataclass

CONFIRM = 2.0
"""Seconds of looking within which a suspected learner must have counted on twice."""

LONGEST_LOOK = 0.5
"""Seconds between two looks, of which more count as so many."""

PROBE = 0.1
"""Seconds between two looks at a suspected learner."""

BEATS = 2
"""Beats that clear a learner of suspicion."""


@dataclass
class Suspect:
    """A learner that may have died.

    Attributes:
        why: what has happened, in words.
        beats: number of its beats since it was first suspected.
        count: its last count of heartbeats; None before the first look.
        looked: when that was read.
        watched: seconds of looking since the first look.
    """

    why: str
    beats: int = 0
    count: bytes | None = None
    looked: float = 0.0
    watched: float = 0.0

    def cleared(self, count: bytes, now: float) -> bool:
        """Return whether the learner lives, given its present count."""
        if self.count is not None:
            self.watched += min(now - self.looked, LONGEST_LOOK)
            self.beats += count != self.count
        self.count, self.looked = count, now
        return self.beats >= BEATS

    def overdue(self) -> bool:
        """Return whether the learner has not counted on for too long."""
        return self.watched > CONFIRM
