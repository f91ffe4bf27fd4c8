"""The benchmark measures how much one slow learner slows the others, by method.

Four real processes train over gloo; one of them is ten times slower. Computing is
emulated by sleep, so two cores are enough. Every algorithm and the peers are measured.
Learners either have equal shares of an epoch's batches, or take each batch from a
queue. There are two figures, both relative to equal learners without communication:

- The middle of an epoch: the steps per second of all learners, from the slowest one's
  first step to the fastest one's last.
- The whole epoch: its steps per second, until the last learner has finished.

The bound is (n - 1 + 1/s) / n, where only the steps of the slow learner are lost.

Before each run of this project's methods there are some steps that are not counted,
because the first exchange allocates memory.

    python benchmarks/straggler.py          # ten minutes; the cores are mostly idle
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

import torch.distributed as dist
from emulated.emulated import Emulated
from emulated.learners import LearnersFailedError, Namespace, launch
from emulated.methods import MeasuredMethod, MeasuredTraining, begin
from emulated.straggler_runs import (
    LEARNERS,
    NODE,
    PARAMETERS,
    STEP_SECONDS,
    StragglerRun,
    runs,
)
from report import how_often, spread, write_report

from espnet_distopt import WorkQueue

WARM_UP = 8
"""Steps that are not counted: two blocks of those methods that have blocks."""


def batches(run: StragglerRun, rank: int, training: MeasuredTraining) -> Iterator[int]:
    """Yield the batches of one learner.

    Args:
        run: the run.
        rank: the learner.
        training: its training.
    """
    if not run.queue:
        yield from range(rank, run.steps, LEARNERS)
    elif training.session is not None:
        # Learners that step together train on one item of the queue together.
        items = run.steps // run.slow
        yield from WorkQueue(training.session, items).read(lambda numbers: numbers)
    else:
        store = dist.distributed_c10d._get_default_store()
        while (batch := store.add("batches", 1) - 1) < run.steps:
            yield batch


@dataclass(frozen=True, kw_only=True)
class MeasuredEpoch:
    """One learner's record of an epoch; times are those of the machine's clock.

    Attributes:
        began: the time at which the epoch began, in seconds.
        steps: the time at which each step ended, in seconds.
        ended: the time at which the epoch ended, in seconds.
        exchanges: how often the learner has averaged with others.
    """

    began: float
    steps: list[float]
    ended: float
    exchanges: float


def warm_up(method: MeasuredMethod, rank: int) -> None:
    """Load what one of this project's methods needs, in steps that take no time.

    Args:
        method: the method.
        rank: the learner.
    """
    if method.ours:
        training = begin(method, Emulated(PARAMETERS, 0.0, rank))
        for _ in range(WARM_UP):
            training.step()
        training.finish()
        assert training.session is not None
        training.session.close()


def train(rank: int, run: StragglerRun) -> MeasuredEpoch:
    """Train for an epoch as learner `rank`."""
    slow = run.slowdown if rank == LEARNERS - 1 else 1.0
    model = Emulated(PARAMETERS, STEP_SECONDS * slow, rank)
    warm_up(run.method, rank)
    training = begin(run.method, model)
    dist.barrier()
    began = time.monotonic()
    ends = []
    for _ in batches(run, rank, training):
        training.step()
        ends.append(time.monotonic())
    exchanges = training.exchanges()
    training.finish()
    ended = time.monotonic()
    return MeasuredEpoch(began=began, steps=ends, ended=ended, exchanges=exchanges)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a run.

    Attributes:
        middle: the steps per second of all learners in the middle of the epoch.
        whole: the steps per second of all learners in the whole epoch.
        exchanges: how often a learner has averaged, averaged over the learners.
    """

    middle: float
    whole: float
    exchanges: float


def figures(run: StragglerRun) -> Figures:
    """Make a run, and return its figures.

    Raises:
        LearnersFailedError: the method has failed.
    """
    timeout = 60 + 4 * run.steps / LEARNERS * STEP_SECONDS * run.slowdown
    epochs: list[MeasuredEpoch] = launch(
        [Namespace()] * LEARNERS, train, run, timeout=timeout
    )
    whole = max(e.ended for e in epochs) - min(e.began for e in epochs)
    throughput = middle = run.steps / whole
    if run.queue:
        first = max(e.steps[0] for e in epochs)
        last = min(e.steps[-1] for e in epochs)
        made = sum(first < end <= last for e in epochs for end in e.steps)
        middle = made / (last - first)
    exchanges = fmean(e.exchanges for e in epochs)
    return Figures(middle=middle, whole=throughput, exchanges=exchanges)


@dataclass(kw_only=True)
class Row:
    """A run and its figures.

    Attributes:
        run: the run.
        found: the figures of each repeat.
        failure: the reason why there are no figures, or None.
    """

    run: StragglerRun
    found: list[Figures] = field(default_factory=list)
    failure: str | None = None


def measure_all(slowdown: float, repeats: int, quick: bool) -> list[Row]:
    """Make every run; runs with a queue have interleaved repeats, the others one run.

    Args:
        slowdown: how many times slower the last learner is than the others.
        repeats: the number of repeats.
        quick: whether the epochs are short.
    """
    rows = [Row(run=r, failure=r.method.missing()) for r in runs(slowdown, quick)]
    for repeat in range(repeats):
        for row in rows:
            once = row.run.slow == LEARNERS
            if row.failure or (repeat and once):
                continue
            try:
                row.found.append(figures(row.run))
                print(f"{row.run.label}: {row.found[-1]}", flush=True)
            except LearnersFailedError as error:
                row.failure = str(error)
                print(f"{row.run.label}: {row.failure}", flush=True)
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table.

    The figures are relative to those of the first row, which has equal learners.
    """
    lines = [
        "| method | middle of an epoch | of the bound | whole epoch | of the bound | "
        "exchanges |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    equal = [figures.whole for figures in rows[0].found]
    for row in rows[1:]:
        if row.failure:
            lines.append(f"| {row.run.label} | {row.failure} |")
            continue
        cells = [row.run.label]
        for values in ([f.middle for f in row.found], [f.whole for f in row.found]):
            ratios = [v / e for v, e in zip(values, equal, strict=False)]
            cells += [spread(ratios, ".3f"), f"{median(ratios) / row.run.bound:.2f}"]
        if not row.run.queue:
            cells[1:3] = "", ""
        exchanges = median(f.exchanges for f in row.found)
        cells.append(f"{exchanges:.0f}" if exchanges else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--slowdown", type=float, default=10.0, help="factor of the slow learner"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of runs with a queue"
    )
    parser.add_argument("--quick", action="store_true", help="make one short run each")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats: expected a positive number, not {args.repeats}")
    repeats = 1 if args.quick else args.repeats
    rows = measure_all(args.slowdown, repeats, args.quick)
    caption = (
        f"{LEARNERS} processes train over gloo; one of them is {args.slowdown:g} times "
        "slower. The figures are steps per second of all learners, relative to "
        f"{LEARNERS} equal learners without communication. Computing is emulated: a "
        f"step sleeps {STEP_SECONDS} s; the optimizer's step and the communication of "
        f"{PARAMETERS:,} parameters are real. The middle of an epoch goes from the "
        "slow learner's first step to the first learner's last; the whole epoch goes "
        "until all learners have finished. With a queue an epoch has "
        f"{rows[1].run.steps} steps, and a figure is "
        f"{how_often(repeats)}; otherwise learners have equal shares of "
        f"{rows[-1].run.steps} steps, and a figure is one run. Before each run of this "
        f"project's methods, {WARM_UP} steps are not counted. The bound is (n - m + "
        "m/s) / n, where m learners are as slow as the slow one: 1 with a queue "
        f"({NODE} for hadpsgd), otherwise all. Exchanges are those of one learner, for "
        "methods that average when they can."
    )
    data = [
        {
            "run": r.run.label,
            "steps_per_second": [asdict(f) for f in r.found],
            "failure": r.failure,
        }
        for r in rows
    ]
    write_report(
        "straggler",
        args.quick,
        args.out,
        table(rows),
        caption,
        data,
        seeds=["each learner's rank, for its gradients"],
        repeats=repeats,
    )


if __name__ == "__main__":
    main()
