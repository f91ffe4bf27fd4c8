"""The module compares methods at growing numbers of virtual learners."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from report import write_report

from convergence import single_digits
from convergence.experiment import ENVIRONMENT, best_rates, get_parser, plot, start
from convergence.training import ABOUT, Training, train


@dataclass(frozen=True, kw_only=True)
class StudySize:
    """The size of the experiment.

    Attributes:
        learners: the numbers of learners at which methods are compared.
        samples: the number of samples of a training.
        rates: the learning rates from which every method chooses, by the first seed.
        seeds: the seeds.
    """

    learners: tuple[int, ...]
    samples: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]


Methods = Callable[[int, int], dict[str, Training]]
"""A function of the samples of a training and the number of learners. It returns each
method's training, whose `lr` is a factor on the rate that is chosen."""


def compare(
    name: str,
    doc: str | None,
    full: StudySize,
    quick: StudySize,
    methods: Methods,
    note: str,
) -> None:
    """Run the trainings that have no result yet, and write the report and a plot.

    Args:
        name: the name of the command and of its results.
        doc: the docstring of the command.
        full: the size of the experiment.
        quick: the size of the experiment with `--quick`.
        methods: the methods to compare; one learner alone is compared, too.
        note: sentences about the methods, for the caption.
    """
    args = get_parser(doc).parse_args()
    size = quick if args.quick else full
    sweep = start(name, args, single_digits.prepare, train)
    asked = {}
    for learners in size.learners:
        for method, cell in methods(size.samples, learners).items():
            asked[method, learners] = cell
    alone = replace(cell, algorithm="allreduce", learners=1, lr=1.0, options=())
    rows = {
        row: [
            replace(cell, lr=cell.lr * rate, seed=size.seeds[0]) for rate in size.rates
        ]
        for row, cell in {("one learner", 1): alone, **asked}.items()
    }
    best = best_rates(sweep, rows, size.seeds)
    lines = [
        "| method | learners | steps | rate | held-out loss, mean (min - max) | "
        "loss in training | other rates, seed 0 |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    for row, figures in best.items():
        lines.append(
            f"| {row[0]} | {row[1]} | {rows[row][0].steps} | {figures.lr:.3g} | "
            f"{figures.held_out} | {figures.trained:.3f} | {figures.others} |"
        )
    caption = (
        f"Simulated: {size.samples:,} samples in every training, {alone.batch} in a "
        f"learner's step. {note} {ABOUT}. "
        f"The rate is the best of {len(size.rates)} by seed 0. "
        f"Problem: {single_digits.ABOUT}."
    )
    data = [{"method": m, "learners": n, **b.data()} for (m, n), b in best.items()]
    path = write_report(
        name,
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
        method: {n: b.losses for (m, n), b in best.items() if m == method}
        for method in dict.fromkeys(m for m, _ in best)
    }
    plot(path, curves, "learners", "held-out loss")
