"""The benchmark measures what hiding and halving the communication cost in quality.

Eight virtual learners train. Methods with blocks use the average at the end of a block
either at once or half a block later (`delay`); AD-PSGD exchanges either float32 or
bfloat16 (`exchange`). All trainings see equally many samples, and each chooses its
learning rate.

    FSDD=/path python benchmarks/overlap_quality.py --workers 2      # 3 minutes
"""

from dataclasses import dataclass, replace
from typing import Any

from convergence import single_digits
from convergence.experiment import ENVIRONMENT, Best, best_rates, get_parser, start
from convergence.training import ABOUT, SINGLES, Training, train
from report import write_report

LEARNERS, BATCH, PERIOD = 8, 4, 8


@dataclass(frozen=True)
class OverlapSize:
    """The size of the experiment.

    Attributes:
        samples: the number of samples of a training.
        adam: the learning rates of methods that use Adam.
        sgd: the learning rates of methods that use SGD.
        seeds: the seeds; the first one chooses the rates.
    """

    samples: int
    adam: tuple[float, ...]
    sgd: tuple[float, ...]
    seeds: tuple[int, ...]


FULL = OverlapSize(8_192, (0.003, 0.01), (0.1, 0.3), (0, 1, 2))
QUICK = OverlapSize(512, (0.003,), (0.1,), (0, 1))

OPTIMIZERS = {"local_sgd": "sgd", "bmuf": "sgd", "slowmo": "sgd"}
"""The optimizers of methods that do not use Adam."""


def methods(samples: int) -> dict[tuple[str, str], Training]:
    """Return (method, variant) -> its training, with a learning rate of 1."""

    def training(name: str, **options: Any) -> Training:
        return Training(
            algorithm=name,
            learners=LEARNERS,
            batch=BATCH,
            samples=samples,
            lr=1.0,
            seed=0,
            optim=OPTIMIZERS.get(name, "adam"),
            options=tuple(options.items()),
            problem=SINGLES,
        )

    found = {}
    for name in ("local_sgd", "bmuf", "bmuf_adam", "slowmo", "diloco"):
        warm = {} if name in ("local_sgd", "slowmo") else {"warmup": 100}
        for delay in (0, PERIOD // 2):
            cell = training(name, period=PERIOD, delay=delay, **warm)
            found[name, f"delay {delay}"] = cell
    for topology in ("ring", "random"):
        for exchange in ("float32", "bfloat16"):
            cell = training(
                "adpsgd",
                topology=topology,
                exchange=exchange,
                second_moment="local",  # As it was when the results were written.
            )
            found[f"adpsgd, {topology}", exchange] = cell
    return found


def main() -> None:
    """Run the trainings that have no result yet, and write the report."""
    args = get_parser(__doc__).parse_args()
    size = QUICK if args.quick else FULL
    sweep = start("overlap_quality", args, single_digits.prepare, train)
    rows = {
        row: [replace(cell, lr=rate) for rate in getattr(size, cell.optim)]
        for row, cell in methods(size.samples).items()
    }
    best = best_rates(sweep, rows, size.seeds)

    def distance(row: tuple[str, str], figures: Best) -> str:
        if not row[0].startswith("adpsgd"):
            return "0"
        cells = [replace(rows[row][0], lr=figures.lr, seed=s) for s in size.seeds]
        found = [float(sweep[cell]["distance"] or 0) for cell in cells]
        return f"{sum(found) / len(found):.2e}"

    lines = [
        "| method | variant | optimizer | rate | held-out loss, mean (min - max) | "
        "loss in training | consensus distance |",
        "| :-- | :-- | :-- | --: | --: | --: | --: |",
    ]
    for row, figures in best.items():
        lines.append(
            f"| {row[0]} | {row[1]} | {rows[row][0].optim} | {figures.lr:.3g} | "
            f"{figures.held_out} | {figures.trained:.3f} | {distance(row, figures)} |"
        )
    caption = (
        f"Simulated: {LEARNERS} learners, {size.samples:,} samples in every training, "
        f"{BATCH} in a learner's step; blocks of {PERIOD} steps, block momentum after "
        f"the first 100. {ABOUT}. The rate is the best of {len(size.adam)} by seed 0. "
        f"Problem: {single_digits.ABOUT}."
    )
    data = [{"method": m, "variant": v, **b.data()} for (m, v), b in best.items()]
    write_report(
        "overlap_quality",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=size.seeds,
        repeats=1,
        environment=ENVIRONMENT,
    )


if __name__ == "__main__":
    main()
