"""One learner of a training, as its lines describe it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from espnet_distopt.monitoring.lines import Line

State = Literal["running", "silent", "failed", "stopped", "finished"]

STARTS = ("begin", "resume")
WINDOW = 300.0
"""The number of seconds before the last line over which rates and shares are means."""
STEP_SILENCE = 120.0
"""The number of seconds without a line after which a learner that trains is silent."""
OTHER_SILENCE = 1800.0
"""The same for one that starts, validates or saves, and so writes no lines."""


def members_of(line: Line) -> set[int]:
    """Return the ranks of the living learners in a line that tells of them."""
    return {int(rank) for rank in (line.members or "").split(",") if rank.isdecimal()}


@dataclass(frozen=True)
class LearnerHistory:
    """A learner by its lines.

    Attributes:
        lines: The lines in their order; there is at least one.
    """

    lines: Sequence[Line]

    @property
    def last(self) -> Line:
        """The last line."""
        return self.lines[-1]

    def age(self, now: float) -> float:
        """Return the seconds since the last line."""
        return max(0.0, now - self.last.time)

    def state(self, now: float) -> State:
        """Return what the learner does at the time `now`, as far as its lines tell."""
        last = self.last
        if last.error is not None:
            return "failed"
        if last.event == "end" or (
            last.event == "epoch" and last.epoch >= last.max_epoch
        ):
            return "finished"
        if last.event == "stop":
            return "stopped"
        patience = OTHER_SILENCE
        if last.event == "step":
            patience = max(STEP_SILENCE, 4 * last.seconds)
        return "running" if self.age(now) <= patience else "silent"

    @cached_property
    def since_start(self) -> Sequence[Line]:
        """The lines since the last start of the process."""
        starts = [n for n, line in enumerate(self.lines) if line.event in STARTS]
        return self.lines[max(starts, default=0) :]

    @cached_property
    def told_of_members(self) -> Sequence[Line]:
        """The lines since its last start in which it tells who lives."""
        return [line for line in self.since_start if line.members is not None]

    @property
    def members(self) -> set[int] | None:
        """Who lives, as it last told since its last start; None if it did not."""
        told = self.told_of_members
        return members_of(told[-1]) if told else None

    @cached_property
    def recent(self) -> list[Line]:
        """The lines with training since the last start, within the window."""
        lines = [line for line in self.since_start if line.seconds]
        first = lines[-1].time - WINDOW if lines else 0.0
        return [line for line in lines if line.time > first]

    def total(self, name: str) -> float:
        """Return the sum of a figure over the recent lines."""
        return float(sum(getattr(line, name) for line in self.recent))

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure over those recent lines that have it."""
        values = [getattr(line, name) for line in self.recent]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def per_second(self, name: str) -> float | None:
        """Return a figure per second of training; one in seconds becomes a share."""
        seconds = self.total("seconds")
        return self.total(name) / seconds if seconds else None

    @property
    def computing(self) -> float | None:
        """The seconds that this learner computes per utterance.

        Learners that step together all make as many steps per second as the slowest.
        This figure tells them apart, because a fast one waits in collectives meanwhile.
        """
        samples = self.total("samples")
        return self.total("computing") / samples if samples else None

    @property
    def staleness_max(self) -> float | None:
        """The largest staleness, in steps, of what it has received lately."""
        values = (line.staleness_max for line in self.recent)
        return max((value for value in values if value is not None), default=None)

    @property
    def loss(self) -> float | None:
        """The last training loss that it wrote."""
        known = (line.loss for line in reversed(self.lines) if line.loss is not None)
        return next(known, None)

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated seconds from `now` to the end of the training."""
        known = (line for line in reversed(self.since_start) if line.left is not None)
        last = next(known, None)
        if last is None or last.left is None:
            return None
        passed = now - last.time if self.state(now) == "running" else 0.0
        return max(0.0, last.left - passed)
