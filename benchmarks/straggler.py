"""How much one slow learner slows all of them: real processes, every algorithm, peers.

Four processes train over gloo; one is ten times slower. Computing is emulated by sleep,
so that two cores are enough. Two figures, each over that of as many equal learners
without any communication:

- in the middle of an epoch: the steps of all learners a second, from the slowest one's
  first step to the fastest one's last;
- the whole epoch: its steps over its seconds, until the last learner is through. What
  steps together has equal shares of the data; `queue` takes each batch from a counter
  that all share.

Nobody can be faster than (n - 1 + 1/s) / n: only the slow learner's steps are lost.

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
from emulated.methods import MeasuredTraining, begin
from emulated.straggler_runs import LEARNERS, NODE, PARAMETERS, STEP_SECONDS, Run, runs
from report import write_report

from espnet_distopt import WorkQueue


def batches(run: Run, rank: int, training: MeasuredTraining) -> Iterator[int]:
    """Yield this learner's batches."""
    if not run.queue:
        yield from range(rank, run.steps, LEARNERS)
    elif training.session is not None:
        # Those who step together train on an item together.
        items = run.steps // run.slow
        yield from WorkQueue(training.session, items).read(lambda numbers: numbers)
    else:
        store = dist.distributed_c10d._get_default_store()
        while (batch := store.add("batches", 1) - 1) < run.steps:
            yield batch


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What a learner has to tell: when it began, its steps' ends, and its end.

    Times are the machine's. exchanges: how often it has averaged with others.
    """

    began: float
    steps: list[float]
    ended: float
    exchanges: float


def train(rank: int, run: Run) -> Epoch:
    """Train for an epoch."""
    slow = run.slowdown if rank == LEARNERS - 1 else 1.0
    model = Emulated(PARAMETERS, STEP_SECONDS * slow, rank)
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
    return Epoch(began=began, steps=ends, ended=ended, exchanges=exchanges)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Steps a second of all learners, and how often one has averaged, on average."""

    middle: float
    whole: float
    exchanges: float


def figures(run: Run) -> Figures:
    """Return what came of a run.

    Raises:
        LearnersFailedError: the method has failed.
    """
    timeout = 60 + 4 * run.steps / LEARNERS * STEP_SECONDS * run.slowdown
    epochs: list[Epoch] = launch([Namespace()] * LEARNERS, train, run, timeout=timeout)
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
    """A run's figures, of each repeat; or why there are none."""

    run: Run
    found: list[Figures] = field(default_factory=list)
    failure: str | None = None


def measure_all(slowdown: float, repeats: int, quick: bool) -> list[Row]:
    """Measure every run; repeats of those with a queue are interleaved."""
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
    """Return the table: ratios to the first row, and how much that is of the bound."""
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
            cells += [_spread(ratios), f"{median(ratios) / row.run.bound:.2f}"]
        if not row.run.queue:
            cells[1:3] = "", ""
        exchanges = median(f.exchanges for f in row.found)
        cells.append(f"{exchanges:.0f}" if exchanges else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _spread(values: Sequence[float]) -> str:
    text = f"{median(values):.3f}"
    if len(values) > 1:
        text += f" ({min(values):.3f} - {max(values):.3f})"
    return text


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdown", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short epochs, once")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    repeats = 1 if args.quick else args.repeats
    rows = measure_all(args.slowdown, repeats, args.quick)
    caption = (
        f"{LEARNERS} processes, gloo, one of them {args.slowdown:g} times slower; "
        f"steps a second of all, over those of {LEARNERS} equal ones without "
        f"communication. Computing is emulated: {STEP_SECONDS} s a step asleep; the "
        f"optimizer's step and communication are real, {PARAMETERS:,} parameters. "
        "Middle: from the slow learner's first step to the first learner's last. "
        "Whole: until all learners are through with the epoch's end. With a queue "
        f"an epoch has {rows[1].run.steps} steps, {repeats} interleaved runs, median "
        f"(min - max); else equal shares, {rows[-1].run.steps} steps, one run. Bound: "
        "(n - m + m/s) / n, where m learners step with the slow one: 1, with a queue "
        f"{NODE} of hadpsgd, else all. Exchanges: averagings of one learner, of those "
        "that average when they can."
    )
    data = [
        {
            "run": r.run.label,
            "steps_per_second": [asdict(f) for f in r.found],
            "failure": r.failure,
        }
        for r in rows
    ]
    write_report("straggler", args.quick, args.out, table(rows), caption, data)


if __name__ == "__main__":
    main()
