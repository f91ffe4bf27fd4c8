"""An experiment that compares methods at growing numbers of virtual learners."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from report import write_report

from convergence import single_digits
from convergence.experiment import best_rates, get_parser, plot, start
from convergence.training import ABOUT, Training, train


@dataclass(frozen=True, kw_only=True)
class StudySize:
    """How large the experiment is.

    Attributes:
        learners: numbers of learners to compare at.
        rates: learning rates that every method chooses from, by the first seed.
    """

    learners: tuple[int, ...]
    samples: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]


Methods = Callable[[int, int], dict[str, Training]]
"""From samples and learners: each method's training; its `lr` multiplies the rate."""


def compare(
    name: str,
    doc: str | None,
    full: StudySize,
    quick: StudySize,
    methods: Methods,
    note: str,
) -> None:
    """Run what is left to run; print the table; write it and a plot.

    Args:
        name: of the results.
        doc: of the command.
        full: the size.
        quick: the size with `--quick`.
        methods: what to compare, beside one learner alone.
        note: about the methods, for the caption.
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
        f"learner's step, {len(size.seeds)} seeds. {note} Every learner computes its "
        f"own gradients. {ABOUT}. The rate is the best of {len(size.rates)} by seed 0. "
        f"Problem: {single_digits.ABOUT}."
    )
    data = [{"method": m, "learners": n, **b.data()} for (m, n), b in best.items()]
    path = write_report(name, args.quick, args.out, lines, caption, data)
    curves = {
        method: {n: b.losses for (m, n), b in best.items() if m == method}
        for method in dict.fromkeys(m for m, _ in best)
    }
    plot(path, curves, "learners", "held-out loss")
