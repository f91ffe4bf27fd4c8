"""The benchmark compares all-reduce and AD-PSGD at growing batch sizes.

It asks, with 16 virtual learners, what IBM asked on Switchboard: how large can the
batch become before a model that has seen the same number of samples is worse? Both
methods choose from the same learning rates, by the held-out loss of seed 0. At the
smallest batch there are three given rates. At a batch r times larger, the rates are
all-reduce's best rate at the smallest batch times r^0.25, r^0.5 and r^0.75. The best
rate of each method and batch is then run with the other seeds.

    FSDD=/path python benchmarks/batch_size.py --workers 2      # 23 minutes
"""

from dataclasses import dataclass, replace

from convergence import digits
from convergence.experiment import (
    ENVIRONMENT,
    Best,
    best_rates,
    get_parser,
    plot,
    start,
)
from convergence.sweep import Sweep
from convergence.training import ABOUT, Training, train
from report import write_report

METHODS = ("allreduce", "adpsgd")
POWERS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """The size of the experiment.

    Attributes:
        learners: the number of virtual learners.
        samples: the number of samples of a training.
        batches: the numbers of samples of a step of all learners together.
        base_rates: the learning rates at the smallest batch.
        seeds: the seeds; the first one chooses the rates.
    """

    learners: int
    samples: int
    batches: tuple[int, ...]
    base_rates: tuple[float, ...]
    seeds: tuple[int, ...]


FULL = BatchSize(
    learners=16,
    samples=131_072,
    batches=(64, 256, 1024),
    base_rates=(0.01, 0.03, 0.1),
    seeds=(0, 1, 2),
)
QUICK = BatchSize(
    learners=4, samples=1024, batches=(16, 64), base_rates=(0.01, 0.03), seeds=(0, 1)
)


def measure(size: BatchSize, sweep: Sweep) -> dict[tuple[str, int], Best]:
    """Return each method's best training at each batch."""
    smallest = size.batches[0]

    def cells(method: str, batch: int, rates: tuple[float, ...]) -> list[Training]:
        cell = Training(
            algorithm=method,
            learners=size.learners,
            batch=batch // size.learners,
            samples=size.samples,
            lr=0.0,
            seed=size.seeds[0],
        )
        return [replace(cell, lr=rate) for rate in rates]

    asked = {(m, smallest): cells(m, smallest, size.base_rates) for m in METHODS}
    base = best_rates(sweep, asked, size.seeds[:1])["allreduce", smallest].lr
    for batch in size.batches[1:]:
        rates = tuple(base * (batch / smallest) ** power for power in POWERS)
        asked |= {(method, batch): cells(method, batch, rates) for method in METHODS}
    return best_rates(sweep, asked, size.seeds)


def main() -> None:
    """Run the trainings that have no result yet, and write the report and a plot."""
    args = get_parser(__doc__).parse_args()
    size = QUICK if args.quick else FULL
    best = measure(size, start("batch_size", args, digits.prepare, train))
    lines = [
        "| algorithm | batch | steps | rate | held-out loss, mean (min - max) | "
        "loss in training | other rates, seed 0 |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    for (method, batch), row in best.items():
        lines.append(
            f"| {method} | {batch} | {size.samples // batch} | {row.lr:.3g} | "
            f"{row.held_out} | {row.trained:.3f} | {row.others} |"
        )
    caption = (
        f"Simulated: {size.learners} virtual learners, {size.samples:,} samples in "
        f"every training, SGD with momentum 0.9. {ABOUT}. The rate is the best of "
        "three by seed 0. "
        f"Problem: {digits.ABOUT}."
    )
    data = [{"algorithm": m, "batch": b, **row.data()} for (m, b), row in best.items()]
    path = write_report(
        "batch_size",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=size.seeds,
        repeats=1,
        environment=ENVIRONMENT,
    )
    curves = {
        method: {batch: best[method, batch].losses for batch in size.batches}
        for method in METHODS
    }
    plot(path, curves, "samples in a step of all learners", "held-out loss")


if __name__ == "__main__":
    main()
