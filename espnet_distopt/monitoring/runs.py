"""The starts and stops of a training as a whole, as all its learners' lines tell them.

A learner's start is one of the whole training, or that of a replacement, over which the
others have gone on.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from operator import attrgetter

from espnet_distopt.monitoring.learner import STARTS, LearnerHistory
from espnet_distopt.monitoring.lines import Event, Line

Learners = Mapping[int, LearnerHistory]
"""The learners of a training by rank."""

_time = attrgetter("time")


def since_begin(learners: Learners, size: int) -> dict[int, LearnerHistory]:
    """Return the learners with their lines since the training last began anew.

    A training that is not resumed appends to the files of the earlier one. A learner
    that has not started since is left out.

    Args:
        learners: All learners that there ever were.
        size: The number of learners that there are now.
    """
    now = {rank: each for rank, each in learners.items() if rank < size}
    begin = max(_starts(now, "begin"), default=0.0)
    kept = {rank: each.lines[_index(each, begin) :] for rank, each in learners.items()}
    return {rank: LearnerHistory(lines) for rank, lines in kept.items() if lines}


def pauses(learners: Learners) -> Iterator[tuple[float, float]]:
    """Yield when the training stopped and when it went on: Unix times, in order."""
    for start in sorted(_starts(learners, "resume")):
        before = [
            each.lines[index - 1].time
            for each in learners.values()
            if (index := _index(each, start))
        ]
        if before:
            yield max(before), start


def epoch_ends(learners: Learners) -> list[Line]:
    """Return a line with the validation loss of each epoch, by time.

    All learners know the loss; the first that told of it is taken. If an epoch was
    repeated after a start, the repetition counts.
    """
    told: dict[int, Line] = {}
    since_start: set[int] = set()
    lines = [line for each in learners.values() for line in each.lines]
    for line in sorted(lines, key=_time):
        if line.event in STARTS:
            since_start = set()
        elif line.valid_loss is not None and line.epoch not in since_start:
            since_start.add(line.epoch)
            told[line.epoch] = line
    return sorted(told.values(), key=_time)


def _starts(learners: Learners, event: Event) -> set[float]:
    """Return when the training as a whole started, by a `begin` or a `resume`."""
    return {
        line.time
        for rank, each in learners.items()
        for line in each.lines
        if line.event == event
        and not any(
            _goes_on_over(line.time, other)
            for number, other in learners.items()
            if number != rank
        )
    }


def _goes_on_over(start: float, learner: LearnerHistory) -> bool:
    """Return whether a learner was at work when another one started."""
    index = _index(learner, start)
    if index == len(learner.lines):
        return learner.state(start) == "running"
    return learner.lines[index].event not in STARTS


def _index(learner: LearnerHistory, time: float) -> int:
    """Return the index of a learner's first line that is not before a time."""
    return bisect_left(learner.lines, time, key=_time)
