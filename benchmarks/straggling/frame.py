"""The frame of a measurement with a slow learner: its runs, their figures and columns.

A loop lists its runs, makes one, and says what its table shows. The first run of the
loops with emulated computing has equal learners without communication, and the figures
of the others are relative to it. The bound is (n - m + m/s) / n, where m of n learners
are as slow as the slow one, because they step together with it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from emulated.methods import MeasuredMethod
from report import spread


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a method.

    Attributes:
        method: the method.
        learners: the number of learners.
        slowdown: how many times slower the last learner is than the others.
        steps: the number of steps of all learners together in an epoch.
        queue: whether learners take batches as they become free; otherwise each learner
            has an equal share.
        slow: the number of learners that the bound takes to be as slow as the last one,
            because they step together with it.
        once: whether the run is not repeated.
    """

    method: MeasuredMethod
    learners: int
    slowdown: float
    steps: int
    queue: bool
    slow: int
    once: bool

    @property
    def bound(self) -> float:
        """The largest possible throughput, relative to that of equal learners."""
        return (self.learners - self.slow + self.slow / self.slowdown) / self.learners


@dataclass(kw_only=True)
class Row:
    """A run and its figures.

    Attributes:
        label: the name of the run in the table.
        run: the run.
        found: the figures of each repeat.
        failure: the reason why there are no figures, or None.
    """

    label: str
    run: Run
    found: list[Any] = field(default_factory=list)
    failure: str | None = None


Columns = Sequence[tuple[str, Callable[[Row, Row], str]]]
"""The headings, each with what shows a cell, given its row and the first one."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop in which a learner is slow.

    Attributes:
        rows: returns the rows of the table, given the slowdown and whether the command
            is only tried.
        measure: makes a run, and returns its figures, a dataclass.
        columns: what the table shows.
        caption: the caption, given the rows and how often a figure is measured.
        repeats: the number of repeats, unless the user gives another one.
        seeds: what the seeds are, as `write_report` takes them.
        hidden: the number of first rows that the table leaves out.
    """

    rows: Callable[[float, bool], list[Row]]
    measure: Callable[[Run], Any]
    columns: Columns
    caption: Callable[[Sequence[Row], str], str]
    repeats: int = 3
    seeds: tuple[str, ...] = ("each learner's rank, for its gradients",)
    hidden: int = 1


def table(loop: Loop, rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table."""
    heads = [heading for heading, _ in loop.columns]
    lines = [
        f"| method | {' | '.join(heads)} |",
        f"| :-- |{' --: |' * len(loop.columns)}",
    ]
    for row in rows[loop.hidden :]:
        if row.failure:
            lines.append(f"| {row.label} | {row.failure} |")
        else:
            cells = [show(row, rows[0]) for _, show in loop.columns]
            lines.append(f"| {' | '.join([row.label, *cells])} |")
    return lines


# The figures of loops whose computing is emulated.


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One learner's record of an epoch; times are those of the machine's clock.

    Attributes:
        began: the time at which the epoch began, in seconds.
        steps: the time at which each step ended, in seconds.
        ended: the time at which the epoch ended, in seconds.
        exchanges: how often the learner has averaged with others.
        batches: the numbers of the batches that it was trained on, if they are known.
    """

    began: float
    steps: list[float]
    ended: float
    exchanges: float = 0.0
    batches: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a run.

    Attributes:
        middle: the steps per second of all learners in the middle of the epoch: from
            the slowest one's first step to the fastest one's last; NaN if there is no
            such time.
        whole: the steps per second of all learners in the whole epoch, until the last
            learner has finished.
        exchanges: how often a learner has averaged, averaged over the learners.
        slow_steps: the number of steps of the slow learner.
        once: whether every batch was trained on exactly once, if that is known.
    """

    middle: float
    whole: float
    exchanges: float = 0.0
    slow_steps: int = 0
    once: bool = False


def of_epochs(run: Run, epochs: Sequence[Epoch]) -> Figures:
    """Return the figures of a run whose learners have made an epoch."""
    whole = max(e.ended for e in epochs) - min(e.began for e in epochs)
    first = max(e.steps[0] for e in epochs)
    last = min(e.steps[-1] for e in epochs)
    made = sum(first < end <= last for e in epochs for end in e.steps)
    batches = sorted(number for e in epochs for number in e.batches)
    return Figures(
        middle=made / (last - first) if last > first else math.nan,
        whole=run.steps / whole,
        exchanges=fmean(e.exchanges for e in epochs),
        slow_steps=len(epochs[-1].steps),
        once=batches == list(range(run.steps)),
    )


def _ratios(row: Row, equal: Row, name: str) -> list[float]:
    """Return a figure of each repeat, over the throughput of equal learners."""
    pairs = zip(row.found, equal.found, strict=False)
    return [getattr(figures, name) / alone.whole for figures, alone in pairs]


def _all_slow(row: Row) -> bool:
    """Return whether the learners end together, so that there is no middle."""
    return row.run.slow == row.run.learners


def _middle(row: Row, equal: Row) -> str:
    return "" if _all_slow(row) else spread(_ratios(row, equal, "middle"), ".3f")


def _middle_of_bound(row: Row, equal: Row) -> str:
    if _all_slow(row):
        return ""
    return f"{median(_ratios(row, equal, 'middle')) / row.run.bound:.2f}"


def _whole(row: Row, equal: Row) -> str:
    return spread(_ratios(row, equal, "whole"), ".3f")


def _whole_of_bound(row: Row, equal: Row) -> str:
    return f"{median(_ratios(row, equal, 'whole')) / row.run.bound:.2f}"


THROUGHPUT: Columns = (
    ("middle of an epoch", _middle),
    ("of the bound", _middle_of_bound),
    ("whole epoch", _whole),
    ("of the bound", _whole_of_bound),
)
"""The columns of the two throughputs."""


def slow_steps(row: Row, _: Row) -> str:
    """Show the number of steps of the slow learner."""
    return spread([float(figures.slow_steps) for figures in row.found], ".0f")


def each_once(row: Row, _: Row) -> str:
    """Show whether every batch was trained on once in an epoch."""
    return "yes" if all(figures.once for figures in row.found) else "no"
