"""A training as its learners' lines describe it: each learner, and the whole."""

import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

from espnet_distopt.errors import InputError
from espnet_distopt.monitoring import lines, stock_log
from espnet_distopt.monitoring.lines import Event, Line

State = Literal["running", "silent", "failed", "stopped", "finished"]

STARTS = ("begin", "resume")
WINDOW = 300.0
"""The number of seconds before the last line over which rates and shares are means."""
STEP_SILENCE = 120.0
"""The number of seconds without a line after which a learner that trains is silent."""
OTHER_SILENCE = 1800.0
"""The same for one that starts, validates or saves, and so writes no lines."""

RECENT = 60
"""The number of last lines of a file whose steps are read: a quarter of an hour."""

SLOWER = 1.1
"""The slowest learner is named if it computes so many times as long as the fastest."""

_time = attrgetter("time")


def members_of(line: Line) -> set[int]:
    """Return the ranks of the living learners in a line that tells of them."""
    return {int(rank) for rank in (line.members or "").split(",") if rank.isdecimal()}


@dataclass(frozen=True)
class LearnerHistory:
    """A learner by its lines, in their order; there is at least one."""

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
        if last.event == "step" and last.seconds:
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

    @cached_property
    def recent(self) -> list[Line]:
        """The lines with training since the last start, within the window."""
        lines = [line for line in self.since_start if line.seconds]
        first = lines[-1].time - WINDOW if lines else 0.0
        return [line for line in lines if line.time > first]

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure over those recent lines that have it."""
        values = [getattr(line, name) for line in self.recent]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def per_second(self, name: str) -> float | None:
        """Return a figure per second of training; one in seconds becomes a share.

        It is that of the recent lines that have the figure.
        """
        known = [line for line in self.recent if getattr(line, name) is not None]
        seconds = sum(line.seconds for line in known)
        return sum(getattr(line, name) for line in known) / seconds if seconds else None

    @property
    def computing(self) -> float | None:
        """The seconds that this learner computes per utterance.

        Learners that step together all make as many steps per second as the slowest.
        This figure tells them apart, because a fast one waits in collectives meanwhile.
        """
        computing, samples = map(self.per_second, ("computing", "samples"))
        return None if computing is None or not samples else computing / samples

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


class Change(NamedTuple):
    """The death of a learner, or its return, and when another one has noted it."""

    time: float
    rank: int
    joins: bool


@dataclass(frozen=True)
class Experiment:
    """The learners of an experiment's last run, by rank; there is at least one.

    Attributes:
        earlier: Those without which it went on when it was resumed with fewer.
    """

    directory: Path
    learners: dict[int, LearnerHistory]
    earlier: dict[int, LearnerHistory] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path, whole: bool = False) -> "Experiment | None":
        """Read `distopt/learner*.jsonl`, or else the log of a stock training.

        What was written before the training last began anew is left out. All steps are
        read if it is to be `whole`, and else the last ones. The result is None if there
        is neither.

        Raises:
            InputError: There is no such directory, or a file in it is damaged.
        """
        if not directory.exists():
            raise InputError(f"{directory}: no such experiment directory")
        learners = {}
        for path in directory.glob("distopt/learner*.jsonl"):
            found = re.fullmatch(r"learner(\d+)\.jsonl", path.name)
            own = lines.read(path, None if whole else RECENT) if found else []
            if found and own:
                learners[int(found[1])] = LearnerHistory(own)
        if not learners and (own := stock_log.read(directory / "train.log")):
            learners[0] = LearnerHistory(own)
        if not learners:
            return None
        size = max((each.last for each in learners.values()), key=_time).learners
        kept = _since_begin(learners, size)
        now = {rank: kept[rank] for rank in sorted(kept) if rank < size}
        earlier = {rank: each for rank, each in kept.items() if rank >= size}
        return cls(directory, now, earlier) if now else None

    @property
    def algorithm(self) -> str:
        """The name of the algorithm; without one, what ESPnet does then."""
        if self.last.algorithm != "none":
            return self.last.algorithm
        return "DDP" if self.last.learners > 1 else "stock ESPnet"

    @property
    def last(self) -> Line:
        """The latest line of all learners."""
        return max((each.last for each in self.learners.values()), key=_time)

    @property
    def begin(self) -> float:
        """The Unix time of the first line of all learners."""
        return min(each.lines[0].time for each in self.learners.values())

    @property
    def seconds(self) -> float:
        """The seconds from the first line to the latest, without pauses."""
        return self.elapsed(self.last.time)

    def elapsed(self, time: float) -> float:
        """Return the seconds from the first line to a Unix time, without pauses."""
        paused = sum(max(0.0, min(end, time) - start) for start, end in self.pauses)
        return time - self.begin - paused

    @cached_property
    def pauses(self) -> list[tuple[float, float]]:
        """When the training as a whole stopped, and when it went on: Unix times."""
        found = []
        for start in sorted(_starts(self.learners, "resume")):
            before = [
                each.lines[index - 1].time
                for each in self.learners.values()
                if (index := _index(each, start))
            ]
            if before:
                found.append((max(before), start))
        return found

    @cached_property
    def epoch_ends(self) -> list[Line]:
        """A line of each epoch that has ended, with its validation loss, by time.

        All learners know the loss; the first that told of it is taken. If an epoch was
        repeated after a start, the repetition counts.
        """
        told: dict[int, Line] = {}
        since_start: set[int] = set()
        everything = [line for each in self.learners.values() for line in each.lines]
        for line in sorted(everything, key=_time):
            if line.event in STARTS:
                since_start = set()
            elif line.valid_loss is not None and line.epoch not in since_start:
                since_start.add(line.epoch)
                told[line.epoch] = line
        return sorted(told.values(), key=_time)

    @property
    def failures(self) -> list[Line]:
        """The last lines of learners that have failed since any was last started."""
        learners = self.living.values()
        start = max(each.since_start[0].time for each in learners)
        ends = [each.last for each in learners if each.last.error is not None]
        return sorted((line for line in ends if line.time >= start), key=_time)

    @cached_property
    def changes(self) -> list[Change]:
        """The deaths and returns of learners since the run was last started.

        They are those that the learner which has lived longest has told of, and what
        another one has told of since: a learner may stop before it has noticed.
        """
        told = [each for each in self.learners.values() if each.told_of_members]
        if not told:
            return []
        newest = max(told, key=lambda each: each.told_of_members[-1].time)
        latest = newest.told_of_members[-1]
        members = members_of(latest) & self.learners.keys()
        living = [self.learners[rank] for rank in sorted(members)]
        witness = min(living or [newest], key=lambda each: each.since_start[0].time)
        lines = [*witness.told_of_members]
        if not lines or latest.time > lines[-1].time:
            lines.append(latest)
        before, found = set(range(self.last.learners)), []
        for line in lines:
            after = members_of(line)
            for rank in sorted(before ^ after):
                found.append(Change(line.time, rank, joins=rank in after))
            before = after
        return found

    @property
    def lost(self) -> dict[int, float]:
        """The learners that have died while the others went on, and when."""
        last = {change.rank: change for change in self.changes}
        return {rank: each.time for rank, each in last.items() if not each.joins}

    @property
    def living(self) -> dict[int, LearnerHistory]:
        """The learners that the others have not lost, by rank."""
        lost = self.lost
        kept = {r: each for r, each in self.learners.items() if r not in lost}
        return kept or self.learners

    def state(self, now: float) -> State:
        """Return the state of the run; it has failed if any living learner has."""
        if self.failures:
            return "failed"
        states = {each.state(now) for each in self.living.values()}
        order: tuple[State, ...] = ("running", "silent", "stopped")
        return next((state for state in order if state in states), "finished")

    def describe(self, now: float) -> str:
        """Return the state in words, with its time, its place or its reason."""
        lost, notes = self.lost, [self._describe(now)]
        for when, rank, joins in self.changes:
            what = "joined" if joins else "lost"
            notes.append(f"learner {rank} {what} {clock(when, now - when)}")
        if lost:
            living = [str(r) for r in range(self.last.learners) if r not in lost]
            notes.append(f"members {' '.join(living)}")
        return ", ".join(notes)

    def _describe(self, now: float) -> str:
        state, last, living = self.state(now), self.last, self.living.items()
        where = f"epoch {last.epoch} step {last.step}"
        if state == "failed":
            first = self.failures[0]
            return f"failed: learner {first.rank}: {first.error}"
        if state == "silent":
            age = max(0.0, now - last.time)
            return f"silent since {clock(last.time, age)}, after {where}"
        if state == "stopped":
            if all(each.last.saved is not False for _, each in living):
                return f"stopped: saved after {where}"
            return f"stopped after {where}: the epoch will be repeated"
        if state == "running":
            silent = [rank for rank, each in living if each.state(now) == "silent"]
            return "running" + "".join(f", learner {rank} silent" for rank in silent)
        return "finished"

    @property
    def behind(self) -> Line:
        """The last line of the learner that is furthest behind."""
        return min(
            (each.last for each in self.living.values()),
            key=lambda line: (line.epoch, line.step),
        )

    @property
    def slowest(self) -> int | None:
        """The rank that computes longest per utterance, if it is much longer."""
        computing = {rank: each.computing for rank, each in self.living.items()}
        times = {rank: each for rank, each in computing.items() if each is not None}
        if not times or max(times.values()) < SLOWER * min(times.values()):
            return None
        return max(times, key=lambda rank: times[rank])

    @property
    def samples_per_second(self) -> float | None:
        """The number of utterances that all learners train on per second."""
        rates = [each.per_second("samples") for each in self.living.values()]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    @property
    def loss(self) -> float | None:
        """The training loss.

        At the end of an epoch it is the epoch's, of the first learner, as in the log.
        Within an epoch it is the mean of what all learners have written last.
        """
        living = self.living.values()
        if self.behind.event in ("epoch", "end"):
            lines = (line for each in living for line in reversed(each.lines))
            for line in lines:
                if line.epoch_loss is not None:
                    return line.epoch_loss
        known = [each.loss for each in living if each.loss is not None]
        return sum(known) / len(known) if known else None

    def at_epoch_end(self, name: str) -> float | None:
        """Return the figure `name` of the last epoch that has ended."""
        everything = (line for each in self.learners.values() for line in each.lines)
        ends = [line for line in everything if getattr(line, name) is not None]
        figure: float | None = getattr(max(ends, key=_time), name) if ends else None
        return figure

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the slowest learner still needs."""
        left = [each.seconds_left(now) for each in self.living.values()]
        return max((each for each in left if each is not None), default=None)


def clock(when: float, age: float) -> str:
    """Return a time in words, with the date if it is half a day ago or more."""
    form = "%H:%M:%S" if age < 12 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(when))


def log_end(directory: Path) -> str:
    """Return the last line of `train.log` that tells of an error, else its last line.

    The result is empty if the file is missing or empty.
    """
    try:
        with (directory / "train.log").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            rows = re.split(r"[\r\n]+", file.read().decode("utf-8", "replace"))
    except OSError:
        return ""
    rows = [row.strip() for row in rows if row.strip()]
    errors = [row for row in rows if re.search(r"[Ee]rror\b.*:|Killed|SIG[A-Z]+", row)]
    return (errors or rows or [""])[-1]


# The starts of a training: a learner's start is one of the whole training, or that of a
# replacement, over which the others have gone on.

Learners = Mapping[int, LearnerHistory]
"""The learners of a training by rank."""


def _since_begin(learners: Learners, size: int) -> dict[int, LearnerHistory]:
    """Return the learners with their lines since the training last began anew.

    A training that is not resumed appends to the files of the earlier one. A learner
    that has not started since is left out.
    """
    now = {rank: each for rank, each in learners.items() if rank < size}
    begin = max(_starts(now, "begin"), default=0.0)
    kept = {rank: each.lines[_index(each, begin) :] for rank, each in learners.items()}
    return {rank: LearnerHistory(lines) for rank, lines in kept.items() if lines}


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
